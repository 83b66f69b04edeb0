"""Word vectors: equations compared with autograd, numba kernels compared with the equations, and GloVe counts."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seqloom.classical.word_vectors import Objective, WordVectorModel, WordVectorsConfig, glove, negative_sampling
from seqloom.classical.word_vectors import trainer as words_training
from seqloom.classical.word_vectors.negative_sampling import (
    GAMMA,
    ContextPredictions,
    Noise,
    Sampler,
    Text,
    keep_probabilities,
    random_bits,
    to_integer,
    to_uniform,
)
from seqloom.classical.word_vectors.trainer import WordTrainConfig, WordVectorTrainer, select_engine
from seqloom.core.device import compile_nogil
from seqloom.core.errors import CheckpointError, DataError, ResourceError

OBJECTIVES: tuple[Objective, ...] = ("skipgram", "cbow", "glove")
V = 30


def small_text(length=240, seed=0):
    """Draw words 2 … V − 1 in documents of 17 words."""
    words = torch.randint(2, V, (length,), generator=torch.Generator().manual_seed(seed))
    return Text(words, torch.arange(length) // 17)


def small_model(objective, width=7, **keys):
    text = small_text()
    chosen = WordVectorsConfig(**{"objective": objective, "vector_size": width, "window": 3, "negatives": 4, **keys})
    return chosen.build(V).draw(1, torch.bincount(text.words, minlength=V)), text


def train_model(objective, steps=None, **keys):
    model, text = small_model(objective, subsample=0.02)
    settings = {"epochs": 1, "block": 50, "batch": 1, "lr": 0.3, "device": "cpu", **keys}
    trainer = WordVectorTrainer(model, text, WordTrainConfig(**settings), seed=5)
    trainer.run(range(trainer.total) if steps is None else steps)
    return trainer


# --- random numbers ---------------------------------------------------------------------------------------------------


def test_random_bits_match_splitmix64():
    def mixed(seed, n):
        x = (seed + (n + 1) * GAMMA) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    for seed in (0, 1, 2**63 - 1, 123456789):
        found = random_bits(seed, torch.arange(50))
        wanted = [mixed(seed, n) for n in range(50)]
        assert [number % 2**64 for number in found.tolist()] == wanted
        assert to_integer(found, 1000).tolist() == [(number >> 32) * 1000 >> 32 for number in wanted]
        assert to_uniform(found).tolist() == [(number & 0xFFFFFF) / 2**24 for number in wanted]


def test_noise_matches_its_distribution():
    p = torch.tensor([0.0, 5.0, 1.0, 0.0, 2.0, 0.5])
    noise = Noise(p)
    threshold = noise.threshold.double().clone()
    mass = torch.zeros(6, dtype=torch.float64).index_add_(0, noise.alias, 1 - threshold) + threshold
    torch.testing.assert_close(mass / 6, p.double() / p.sum(), atol=1e-7, rtol=0)
    drawn = torch.bincount(noise(random_bits(3, torch.arange(100_000))), minlength=6) / 100_000
    torch.testing.assert_close(drawn, p / p.sum(), atol=5e-3, rtol=0)
    assert drawn[0] == drawn[3] == 0


def test_keep_probabilities_match_the_formula():
    counts = torch.tensor([0, 900, 90, 10])
    t = 0.01
    expected = [min(1, math.sqrt(t / q) + t / q) for q in (0.9, 0.09, 0.01)]
    torch.testing.assert_close(keep_probabilities(counts, t)[1:], torch.tensor(expected))
    assert keep_probabilities(counts, 0).tolist() == [1, 1, 1, 1]


# --- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["skipgram", "cbow"])
def test_predictions_match_a_loop_over_the_text(objective):
    model, text = small_model(objective, subsample=0.01)
    sampler = Sampler(model.config, text, model.counts, seed=3, block=100)
    block = sampler.block(1)
    words, documents, reach = (part.tolist() for part in (block.words, block.documents, block.reach))
    assert 0 < len(words) < 100 and set(reach) == {1, 2, 3}
    wanted = []
    for i, word in enumerate(words):
        near = [
            words[j]
            for j in range(max(0, i - reach[i]), min(len(words), i + reach[i] + 1))
            if j != i and documents[j] == documents[i]
        ]
        wanted += [(near, word)][: len(near)] if objective == "cbow" else [([word], one) for one in near]
    batches = list(sampler.predictions(block).batches(7))
    found = [
        ([word for word, is_real in zip(inputs, mask, strict=True) if is_real], candidates[0])
        for batch in batches
        for inputs, mask, candidates in zip(
            batch.inputs.tolist(), batch.input_mask.tolist(), batch.candidates.tolist(), strict=True
        )
    ]
    assert found == wanted
    whole = sampler.predictions(block)
    # The result does not depend on the batches
    assert torch.cat([batch.candidates for batch in batches]).equal(whole.candidates)
    for candidates, mask in zip(whole.candidates.tolist(), whole.candidate_mask.tolist(), strict=True):
        assert mask == [word not in candidates[:position] for position, word in enumerate(candidates)]


@pytest.mark.parametrize("objective", ["skipgram", "cbow"])
def test_step_is_the_gradient_of_the_loss(objective):
    """Compare with autograd in float64. As in word2vec, CBOW gives each neighbour the full gradient of the mean."""
    model, text = small_model(objective)
    for name in ("vectors", "contexts"):
        setattr(model, name, torch.randn(V, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(4)))
    sampler = Sampler(model.config, text, model.counts, seed=3, block=100)
    predictions = next(sampler.predictions(sampler.block(0)).batches(5))
    v, u = (getattr(model, name).clone().requires_grad_() for name in ("vectors", "contexts"))
    inputs, mask = predictions.inputs, predictions.input_mask
    x = (v[inputs] * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)
    x.retain_grad()
    score = torch.einsum("pd,pkd->pk", x, u[predictions.candidates])
    y = F.one_hot(torch.zeros(len(score), dtype=torch.int64), score.shape[1]).double()
    loss = (F.binary_cross_entropy_with_logits(score, y, reduction="none") * predictions.candidate_mask).sum()
    loss.backward()
    before = model.vectors.clone(), model.contexts.clone()
    torch.testing.assert_close(negative_sampling.update(model, predictions, rate=0.01), loss.detach())
    assert u.grad is not None and x.grad is not None
    torch.testing.assert_close(model.contexts - before[1], -0.01 * u.grad, atol=1e-12, rtol=1e-10)
    gradient = torch.zeros_like(before[0])
    for row, (words, real) in enumerate(zip(inputs, mask, strict=True)):
        gradient.index_add_(0, words[real], x.grad[row].expand(int(real.sum()), -1))
    torch.testing.assert_close(model.vectors - before[0], -0.01 * gradient, atol=1e-12, rtol=1e-10)


def test_total_rate_of_one_word_is_limited():
    model, _ = small_model("skipgram")
    model.contexts.fill_(0.5)
    model.vectors.fill_(0.5)
    pair = torch.tensor([[4, 5]])
    one = ContextPredictions(torch.tensor([[3]]), torch.tensor([[True]]), pair, torch.tensor([[True, True]]))
    many = ContextPredictions(*(part.repeat(500, 1) for part in vars(one).values()))
    before = model.vectors[3].clone()
    negative_sampling.update(model, many, rate=0.1)
    together = model.vectors[3] - before
    model.vectors.fill_(0.5)
    model.contexts.fill_(0.5)
    negative_sampling.update(model, one, rate=0.1)
    torch.testing.assert_close(
        together, (model.vectors[3] - before) * negative_sampling.MAX_TOTAL_RATE / 0.1, rtol=1e-4, atol=0
    )


# --- numba kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_numba_kernels_match_the_equations(objective):
    pytest.importorskip("numba")
    fast, plain = (train_model(objective, engine=engine).model for engine in ("numba", "torch"))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(getattr(fast, name), tensor, atol=2e-5, rtol=1e-4)
    for name, tensor in plain.squares.items():
        torch.testing.assert_close(fast.squares[name], tensor, atol=2e-5, rtol=1e-4)
    begun, _ = small_model(objective)
    assert (plain.vectors - begun.vectors).abs().max() > 0.01  # negative control: training changed the vectors


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("engine", ["numba", "torch"])
def test_resumed_training_matches_uninterrupted_training(objective, engine):
    if engine == "numba":
        pytest.importorskip("numba")
    batch = {} if engine == "numba" else {"batch": 16}
    whole = train_model(objective, engine=engine, **batch)
    halves = train_model(objective, range(3), engine=engine, **batch)
    kept = {name: tensor.clone() for name, tensor in halves.model.state_dict().items()}
    more = {name: tensor.clone() for name, tensor in halves.model.training_state().items()}
    model = halves.model.config.build(V)
    model.load_state_dict(kept)
    model.load_training_state(more)
    rest = WordVectorTrainer(model, small_text(), halves.train, seed=5)
    rest.run(range(3, rest.total))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, getattr(model, name)), name
    other = train_model(objective, range(2), engine=engine, **batch)
    assert not torch.equal(other.model.vectors, whole.model.vectors)  # negative control


def test_workers_run_every_step_once(monkeypatch):
    """Workers update the vectors in a race, so the test counts steps instead of comparing results."""
    pytest.importorskip("numba")
    make_step, made = WordVectorTrainer._step, []

    def counted(trainer, step):
        made.append(step)
        return make_step(trainer, step)

    monkeypatch.setattr(WordVectorTrainer, "_step", counted)
    one = train_model("skipgram", engine="numba", workers=1, lr=0.05)
    assert made == list(range(one.total))
    made.clear()
    two = train_model("skipgram", engine="numba", workers=2, lr=0.05)
    assert sorted(made) == list(range(two.total))
    before = train_model("skipgram", engine="numba", lr=0.05, steps=range(0))
    assert not torch.equal(two.model.vectors, before.model.vectors) and two.model.vectors.isfinite().all()
    assert one.run(range(1)).read == two.run(range(1)).read


def test_learning_rate_decreases_linearly_or_is_constant():
    trainer = train_model("skipgram", steps=[], engine="torch", lr=None, min_lr=0.001)
    rates = [trainer.rate(step) for step in range(trainer.total)]
    assert rates[0] == 0.025 and rates == sorted(rates, reverse=True)
    assert rates[3] == pytest.approx(0.025 * (1 - 3 / trainer.total))
    assert trainer.rate(trainer.total) == 0.001
    steady = train_model("glove", steps=[], engine="torch", lr=None, schedule="constant")
    assert {steady.rate(step) for step in (0, 3)} == {0.05}


def test_numba_compiles_without_a_cache_folder(monkeypatch):
    numba = pytest.importorskip("numba")
    asked = []

    def njit(**options):
        asked.append(options.get("cache", False))
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert compile_nogil()(len)("abc") == 3
    assert asked == [True, False]


def test_engine_is_numba_if_installed_and_torch_otherwise(monkeypatch):
    monkeypatch.setattr(words_training, "has_numba", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert select_engine(WordTrainConfig())[0] == "torch"
    with pytest.raises(ResourceError, match=r"seqloom\[fast\]"):
        select_engine(WordTrainConfig(engine="numba"))
    monkeypatch.setattr(words_training, "has_numba", lambda: True)
    assert select_engine(WordTrainConfig())[0] == "numba"
    assert select_engine(WordTrainConfig(engine="torch"))[0] == "torch"


# --- GloVe ------------------------------------------------------------------------------------------------------------


def test_pairs_match_a_loop_over_the_text(monkeypatch):
    text, window = small_text(), 4
    wanted: Counter[tuple[int, int]] = Counter()
    for i in range(len(text)):
        for j in range(max(0, i - window), min(len(text), i + window + 1)):
            if i != j and text.documents[i] == text.documents[j]:
                wanted[int(text.words[i]), int(text.words[j])] += 1 / abs(i - j)  # type: ignore[assignment]
    for size in (glove.PAIRS_PER_CHUNK, 20):  # one chunk and many
        monkeypatch.setattr(glove, "PAIRS_PER_CHUNK", size)
        found = glove.count_pairs(text, window, V)
        made = dict(
            zip(zip(found.rows.tolist(), found.columns.tolist(), strict=True), found.counts.tolist(), strict=True)
        )
        assert made == pytest.approx(dict(wanted))


def test_glove_step_matches_adagrad():
    model, text = small_model("glove", cutoff=2.0)
    fitted = glove.weigh_pairs(model.config, glove.count_pairs(text, 3, V), torch.device("cpu"))
    pair = glove.WeightedPairs(fitted.rows[:1], fitted.columns[:1], fitted.logs[:1], fitted.weights[:1])
    leaves = {name: getattr(model, name).clone().requires_grad_() for name in model.squares}
    i, j = int(pair.rows), int(pair.columns)
    o = leaves["vectors"][i] @ leaves["contexts"][j] + leaves["biases"][i] + leaves["context_biases"][j] - pair.logs[0]
    loss = 0.5 * pair.weights[0] * o**2
    loss.backward()
    for tensor in model.squares.values():
        tensor.fill_(1.7)
    torch.testing.assert_close(glove.update(model, pair, 0.05), loss.detach())
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        step = 0.05 * leaf.grad
        torch.testing.assert_close(getattr(model, name), leaf.detach() - step / math.sqrt(1.7))
        torch.testing.assert_close(model.squares[name], 1.7 + step**2)


def test_rare_pairs_have_lower_weight():
    pairs = glove.Pairs(torch.tensor([2, 2, 2]), torch.tensor([3, 4, 5]), torch.tensor([1.0, 10.0, 500.0]).double())
    found = glove.weigh_pairs(WordVectorsConfig(objective="glove", cutoff=10.0, power=0.75), pairs, torch.device("cpu"))
    torch.testing.assert_close(found.weights, torch.tensor([0.1**0.75, 1, 1]))
    torch.testing.assert_close(found.logs, torch.tensor([0, math.log(10), math.log(500)]))


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_words_with_shared_contexts_become_similar(objective):
    """Each document uses words of one of five groups. The nearest neighbours are in the same group."""
    generator = np.random.default_rng(0)
    documents = [generator.integers(2 + 5 * group, 7 + 5 * group, size=12) for group in generator.integers(0, 5, 150)]
    text = Text(torch.from_numpy(np.concatenate(documents)), torch.arange(150).repeat_interleave(12))
    model = WordVectorsConfig(objective=objective, vector_size=8, window=3, subsample=0).build(27)
    model.draw(1, torch.bincount(text.words, minlength=27))
    trainer = WordVectorTrainer(
        model, text, WordTrainConfig(epochs=25, lr=0.1, device="cpu", batch=64, block=300), seed=1
    )
    trainer.run(range(trainer.total))
    unit = F.normalize(model.words[2:], dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-2)
    nearest = cosines.argmax(dim=1)
    assert (nearest // 5 == torch.arange(25) // 5).float().mean() > 0.9


def test_tensors_of_another_model_are_rejected():
    model, _ = small_model("skipgram")
    with pytest.raises(CheckpointError, match="biases, context_biases unknown"):
        model.load_state_dict(small_model("glove")[0].state_dict())
    with pytest.raises(CheckpointError, match=r"vectors must have the shape \(\d+, 7\); got \(\d+, 6\)"):
        model.load_state_dict(small_model("skipgram", width=6)[0].state_dict())


def test_all_problems_of_the_settings_are_reported():
    with pytest.raises(ValueError, match=r"vector_size.*\n.*window.*\n.*subsample.*\n.*cutoff"):
        WordVectorsConfig(vector_size=0, window=-1, subsample=-1.0, cutoff=0.0)
    with pytest.raises(ValueError, match=r"epochs.*\n.*workers.*\n.*batch.*\n.*numba needs the CPU"):
        WordTrainConfig(epochs=0, workers=0, batch=0, engine="numba", device="cuda")


def test_text_without_words_is_rejected():
    empty = Text(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    for objective in OBJECTIVES:
        model = WordVectorModel(WordVectorsConfig(objective=objective), V)
        with pytest.raises(DataError):
            WordVectorTrainer(model, empty, WordTrainConfig(device="cpu"), seed=1)
