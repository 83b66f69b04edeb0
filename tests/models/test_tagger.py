"""The tagger with every encoder, with and without a CRF.

The tests cover padding, subwords, spelling, losses, constraints and training.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import build, to_mapping
from seqloom.core.errors import UsageError
from seqloom.core.iob import read_tags
from seqloom.models.tagger import SequenceTagger, TaggerConfig

V, C = 12, 7
NAMES = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
K = len(NAMES)
RECURRENT = {"kind": "recurrent", "hidden": 10}
KINDS: dict[str, dict[str, Any]] = {
    "recurrent-crf": {"encoder": RECURRENT},
    "recurrent-softmax": {"encoder": {**RECURRENT, "cell": "gru", "layers": 2}, "crf": False},
    "recurrent-characters": {"encoder": RECURRENT, "characters": {"kind": "rnn", "hidden": 4}},
    "one-way-characters": {
        "encoder": {**RECURRENT, "bidirectional": False},
        "characters": {"kind": "cnn"},
        "crf": False,
    },
    "convolution-crf": {"encoder": {"kind": "convolution", "widths": [3, 5], "filters": 10}},
    "transformer-crf": {"encoder": {"kind": "transformer", "d_model": 16, "heads": 2, "dropout": 0.0}},
}
# The number of tokens of each word, per sentence.
SENTENCES = ((1, 3, 1, 2), (2, 2), (), (1, 1, 1))


def config_of(**options: Any) -> TaggerConfig:
    return build(TaggerConfig, {"embedding": 16, **options})


def tagger(constrained: bool = False, **options: Any) -> SequenceTagger:
    torch.manual_seed(0)
    model = config_of(**options).build(V, K, C if options.get("characters") else 0).double().eval()
    for parameter in model.chain.parameters():
        torch.nn.init.normal_(parameter)
    if constrained:
        model.constrain(NAMES)
    return model


@pytest.fixture(params=KINDS)
def model(request) -> SequenceTagger:
    return tagger(**KINDS[request.param])


def sentences(shapes: tuple[tuple[int, ...], ...] = SENTENCES) -> dict[str, Tensor]:
    torch.manual_seed(1)
    S, W = max(map(sum, shapes)), max(map(len, shapes))
    first = torch.zeros(len(shapes), W, dtype=torch.long)
    for row, shape in enumerate(shapes):
        first[row, : len(shape)] = torch.tensor([sum(shape[:position]) for position in range(len(shape))])
    words = torch.arange(W) < torch.tensor([len(shape) for shape in shapes]).unsqueeze(1)
    return {
        "tokens": torch.randint(V, (len(shapes), S)),
        "mask": torch.arange(S) < torch.tensor([sum(shape) for shape in shapes]).unsqueeze(1),
        "first": first,
        "words": words,
        "tags": torch.randint(K, words.shape),
        "characters": torch.randint(1, C, (*words.shape, 4)) * words.unsqueeze(2),
    }


# --- inputs -----------------------------------------------------------------------------------------------------------


def test_single_sentence_gives_the_same_result_as_in_a_padded_batch(model) -> None:
    batch = sentences()
    emissions, tags = model(batch), model.predict(batch)
    assert emissions.shape == (len(SENTENCES), 4, K) and tags.shape == (len(SENTENCES), 4)
    for row, shape in enumerate(SENTENCES):
        if shape:
            S, W = sum(shape), len(shape)
            cut = {"tokens": S, "mask": S, "first": W, "words": W, "tags": W, "characters": W}
            alone = {name: value[row : row + 1, : cut[name]] for name, value in batch.items()}
            torch.testing.assert_close(model(alone)[0], emissions[row, :W], atol=1e-10, rtol=0)
            assert torch.equal(model.predict(alone)[0], tags[row, :W]) and not tags[row, W:].any()
    wider = {name: F.pad(batch[name], (0, 3)) for name in ("tokens", "mask", "first", "words", "tags")}
    wider["characters"] = F.pad(batch["characters"], (0, 2, 0, 3))
    torch.testing.assert_close(model(wider)[:, :4][batch["words"]], emissions[batch["words"]], atol=1e-10, rtol=0)
    torch.testing.assert_close(model.loss(wider), model.loss(batch), atol=1e-10, rtol=0)


def test_word_is_read_at_its_first_token(model) -> None:
    batch = sentences(((2, 3, 1),))
    spelled = model.lexicon.read_spelling(batch["characters"])
    at = None
    if spelled is not None:  # the input is [E w; c] at the first token of a word and [E w; 0] at its other tokens
        at = torch.zeros(1, 6, spelled.shape[2], dtype=torch.float64)
        for word, position in enumerate((0, 2, 5)):
            at[0, position] = spelled[0, word]
    h = model.encoder(model.lexicon(batch["tokens"], at), batch["mask"])
    torch.testing.assert_close(model(batch), model.output(h[:, [0, 2, 5]]), atol=1e-12, rtol=0)


def test_spelling_influences_neighbouring_words(model) -> None:
    """Spelling is read before the encoder, so it affects the tags of other words."""
    batch = sentences(((1, 2, 1),))
    other = {**batch, "characters": batch["characters"].clone()}
    other["characters"][0, 0] = other["characters"][0, 0].flip(0)
    changed = (model(batch) - model(other)).abs().sum(dim=2)[0] > 1e-12
    assert changed.tolist() == [model.config.characters is not None] * 3


def test_padding_has_no_gradient(model) -> None:
    batch = sentences()
    batch["tokens"] = batch["tokens"].clamp(max=10).masked_fill(~batch["mask"], 11)
    model.loss(batch)[0].backward()
    gradient = model.lexicon.embed.weight.grad
    assert gradient is not None and not gradient[11].any() and gradient[batch["tokens"][0]].any(dim=1).all()


# --- losses -----------------------------------------------------------------------------------------------------------


def test_loss_is_the_mean_per_word(model) -> None:
    batch = sentences()
    emissions, words, tags = model(batch), batch["words"], batch["tags"]
    if model.config.crf:
        expected = -model.chain.log_likelihood(emissions, tags, words).sum() / 9
    else:
        expected = F.cross_entropy(emissions[words], tags[words])
    value, count = model.loss(batch)
    torch.testing.assert_close(value, expected, atol=1e-10, rtol=0)
    assert count.item() == 9


def test_loss_ignores_unseen_tags(model) -> None:
    batch = sentences()
    batch["tags"][0, 1] = -1
    value, count = model.loss(batch)
    if model.config.crf:  # a CRF ignores the complete sentence
        rest = {name: part[1:] for name, part in batch.items()}
        torch.testing.assert_close(value, model.loss(rest)[0], atol=1e-10, rtol=0)
    else:
        known = batch["words"] & (batch["tags"] >= 0)
        torch.testing.assert_close(
            value, F.cross_entropy(model(batch)[known], batch["tags"][known]), atol=1e-10, rtol=0
        )
    assert count.item() == (5 if model.config.crf else 8)
    value, count = model.loss({**batch, "tags": torch.full_like(batch["tags"], -1)})
    assert value.item() == 0 and count.item() == 0


def test_loss_has_at_least_single_precision(model) -> None:
    model, batch = model.float().train(), sentences()
    expected = model.loss(batch)[0]
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = model.loss(batch)
        assert value.dtype == torch.float32 == model.probabilities(batch).dtype
    value.backward()
    torch.testing.assert_close(value, expected, atol=0.05, rtol=0)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.bfloat16().loss(batch)[0].dtype == torch.float32 == model.probabilities(batch).dtype


def test_loss_needs_no_device_synchronization(model) -> None:
    """Tensors on the meta device have no values, so that any synchronization raises an error, also in backward."""
    meta_model = model.float().train().to("meta")
    value, count = meta_model.loss({name: value.to("meta") for name, value in sentences().items()})
    value.backward()
    assert value.shape == count.shape == ()


# --- predictions ------------------------------------------------------------------------------------------------------


def test_probabilities_sum_to_one_and_best_tags_are_optimal(model) -> None:
    batch = sentences()
    p, words = model.probabilities(batch), batch["words"]
    torch.testing.assert_close(p.sum(dim=2), words.double())
    if not model.config.crf:
        torch.testing.assert_close(p[words], model(batch).softmax(dim=2)[words], atol=1e-10, rtol=0)
        assert torch.equal(model.predict(batch), model(batch).argmax(dim=2).masked_fill(~words, 0))
        return
    best = model.predict(batch)
    value = model.chain.log_likelihood(model(batch), best, words)
    for row, shape in enumerate(SENTENCES):
        for position in range(len(shape)):
            for tag in range(K):
                other = best.clone()
                other[row, position] = tag
                assert model.chain.log_likelihood(model(batch), other, words)[row] <= value[row] + 1e-12


@pytest.mark.parametrize("crf", [True, False])
def test_constrained_predictions_are_valid(crf) -> None:
    batch = sentences(((1,) * 9,) * 30)
    wrong = {}
    for constrain in (True, False):
        model = tagger(True, encoder=RECURRENT, crf=crf, constrain=constrain)
        rows = [[NAMES[tag] for tag in row] for row in model.predict(batch).tolist()]
        wrong[constrain] = sum(bool(read_tags(row).mistakes) for row in rows)
        begins_inside = model.probabilities(batch)[:, 0, [2, 3]]
        assert bool(begins_inside.any()) != constrain
    assert wrong[True] == 0 < wrong[False]


def test_part_of_speech_tags_are_not_constrained() -> None:
    model = config_of().build(V, 3)
    model.constrain(["ADJ", "NOUN", "VERB"])
    assert model.chain.allowed.all()


# --- training ---------------------------------------------------------------------------------------------------------


def test_small_dataset_is_memorized(model) -> None:
    """The tags are random, so a model can use only positions and neighbours."""
    model.constrain(["A", "B", "C", "D", "E"])
    batch = sentences(((1, 3, 1, 2), (2, 2, 1), (1, 1, 1), (3, 1)))
    model.float().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        value, _ = model.loss(batch)
        value.backward()
        optimizer.step()
        if value.item() < 0.02:
            break
    model.eval()
    assert torch.equal(model.predict(batch)[batch["words"]], batch["tags"][batch["words"]])
    assert model.loss(batch)[0].item() < 0.1


def test_crf_learns_transitions() -> None:
    """All words are equal, and tags alternate. Without a CRF, each tag has probability 1/2."""
    tags = torch.tensor([[0, 1] * 4, [1, 0] * 4])
    words = torch.ones_like(tags, dtype=torch.bool)
    first = torch.arange(8).expand(2, 8)
    batch = {"tokens": torch.ones_like(tags), "mask": words, "first": first, "words": words, "tags": tags}
    losses = {}
    for crf in (True, False):
        torch.manual_seed(0)
        model = config_of(encoder={"kind": "convolution", "widths": [1], "filters": 4}, crf=crf).build(V, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            value, _ = model.loss(batch)
            value.backward()
            optimizer.step()
        losses[crf] = value.item() * 8
    assert losses[False] == pytest.approx(8 * 0.693, abs=0.01)
    assert losses[True] == pytest.approx(0.693, abs=0.1)  # only the first tag is random


def test_every_parameter_has_a_gradient(model) -> None:
    model.loss(sentences())[0].backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in still if ".cell.bias" not in name] == []


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"embedding": 0, "dropout": 2.0}, "embedding: must be at least 1"),
        ({"embedding": 0, "dropout": 2.0}, "dropout: must be less than 1"),
        ({"encoder": {"kind": "bag"}}, "encoder.kind"),
        ({"pooling": "max"}, "no such key"),
    ],
)
def test_invalid_settings_are_rejected(options, words) -> None:
    with pytest.raises(UsageError, match=words):
        config_of(**options)


def test_every_config_survives_a_recipe_round_trip(model) -> None:
    assert build(TaggerConfig, to_mapping(model.config)) == model.config
    assert model.config.longest is None
    with torch.device("meta"):
        built = model.config.build(V, K, C)
        built.constrain(NAMES)
    assert [p.shape for p in built.parameters()] == [p.shape for p in model.parameters()]
