"""Output layers compared with torch, with their equations, and with the full softmax."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import build, to_mapping
from seqloom.core.errors import UsageError
from seqloom.nn.softmax import (
    AdaptiveSoftmaxConfig,
    FullSoftmaxConfig,
    OutputLayer,
    SampledSoftmax,
    SampledSoftmaxConfig,
    SoftmaxConfig,
)

V, H, N = 40, 8, 24
KINDS: dict[str, Any] = {
    "full": FullSoftmaxConfig(),
    "adaptive": AdaptiveSoftmaxConfig(cutoffs=(7, 20), factor=2.0),
    "uniform": SampledSoftmaxConfig(sampler="uniform", samples=9),
    "log-uniform": SampledSoftmaxConfig(sampler="log-uniform", samples=9),
    "unigram": SampledSoftmaxConfig(sampler="unigram", samples=9),
    "blackout": SampledSoftmaxConfig(sampler="blackout", samples=9),
}
SAMPLERS = ("uniform", "log-uniform", "unigram", "blackout")
COUNTS = torch.tensor([1000 // (rank + 1) for rank in range(V)])


def exactly(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def layer(config: Any, vocabulary: int = V, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    output_layer = config.build(H, vocabulary).double()
    if isinstance(output_layer, SampledSoftmax):
        output_layer.set_counts(COUNTS[:vocabulary])
    return output_layer


def sampled(sampler: str, samples: int, seed: int = 0) -> SampledSoftmax:
    output_layer = layer(build(SoftmaxConfig, {"kind": "sampled", "sampler": sampler, "samples": samples}), seed=seed)
    assert isinstance(output_layer, SampledSoftmax)
    nn.init.normal_(output_layer.weight)
    nn.init.normal_(output_layer.bias)
    return output_layer


def data(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, H, generator=generator, dtype=torch.float64)
    targets = torch.randint(V, (N,), generator=generator)
    targets[:4] = torch.tensor([0, 6, 7, V - 1])  # both sides of a cutoff, first and last token
    return hidden, targets


def gradients(value: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, of)


# --- common contract --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_output_layers_are_exact_and_normalized(config: Any) -> None:
    output_layer = layer(config)
    hidden, targets = data()
    assert issubclass(type(output_layer), OutputLayer)
    log_probs = output_layer.log_probs(hidden.view(4, 6, H))
    assert log_probs.shape == (4, 6, V)
    exactly(log_probs.exp().sum(-1), torch.ones(4, 6, dtype=torch.float64))
    exactly(output_layer.target_log_probs(hidden, targets), log_probs.view(N, V).gather(1, targets[:, None])[:, 0])
    exactly(output_layer(hidden).log_softmax(-1), log_probs.view(N, V))
    value = output_layer.loss(hidden, targets)
    assert value.shape == () and value > 0
    value.backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all() for parameter in output_layer.parameters()
    )


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_initial_distribution_is_nearly_uniform(config: Any) -> None:
    for scale in (None, 0.01):
        output_layer = layer(config)
        output_layer.initialize(scale)
        log_probs = output_layer.log_probs(0.1 * data()[0])
        assert (log_probs + math.log(V)).abs().max() < 0.5


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_softmax_has_at_least_single_precision(config: Any) -> None:
    output_layer = layer(config).to(torch.bfloat16)
    hidden, targets = data()
    hidden = hidden.to(torch.bfloat16)
    assert output_layer.log_probs(hidden).dtype == output_layer.target_log_probs(hidden, targets).dtype == torch.float32
    output_layer = output_layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert output_layer.loss(hidden.float(), targets).dtype == torch.float32
        assert output_layer.loss(hidden, targets).dtype == torch.float32


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_layer_survives_recipe_and_state_dict_round_trips(config: Any) -> None:
    assert build(SoftmaxConfig, to_mapping(config)) == config
    first, second = layer(config), config.build(H, V).double()
    second.load_state_dict(first.state_dict())
    hidden, targets = data()
    torch.manual_seed(3)
    expected = first.loss(hidden, targets)
    torch.manual_seed(3)
    assert torch.equal(second.loss(hidden, targets), expected)


def test_full_softmax_matches_a_linear_layer() -> None:
    output_layer = layer(FullSoftmaxConfig())
    assert list(output_layer.state_dict()) == ["weight", "bias"]
    hidden, targets = data()
    exactly(
        output_layer.loss(hidden, targets), F.cross_entropy(hidden @ output_layer.weight.T + output_layer.bias, targets)
    )


@pytest.mark.parametrize("at_once", [1, 40, 10**6])
def test_full_softmax_computed_in_pieces_matches_one_call(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding on a CPU computes the softmax in pieces, without gradients."""
    monkeypatch.setattr("seqloom.accel.cross_entropy.CPU_CHUNK_LOGITS", at_once)
    monkeypatch.setattr("seqloom.accel.cross_entropy.MIN_CHUNK_ROWS", 1)
    layer = FullSoftmaxConfig().build(H, V).double()
    for shape in ((H,), (5, H), (2, 3, H), (0, H)):
        hidden = torch.randn(*shape, dtype=torch.float64)
        with torch.no_grad():
            result = layer.log_probs(hidden)
        torch.testing.assert_close(result, layer.log_probs(hidden), atol=1e-12, rtol=0)


@pytest.mark.parametrize("config", [FullSoftmaxConfig(), KINDS["blackout"]], ids=["full", "sampled"])
def test_tied_matrix_is_shared_and_not_reinitialized(config: Any) -> None:
    weight = nn.Parameter(torch.randn(V, H))
    output_layer, before = config.build(H, V, weight), weight.detach().clone()
    output_layer.initialize(0.05)
    assert output_layer.weight is weight and torch.equal(weight, before)
    assert 0.02 < output_layer.bias.abs().max() <= 0.05


# --- adaptive ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cutoffs", "factor"), [((7, 20), 2.0), ((1,), 4.0), ((5, 6, 39), 1.5), ((39,), 1.0)])
def test_adaptive_softmax_matches_torch(cutoffs: tuple[int, ...], factor: float) -> None:
    output_layer = layer(AdaptiveSoftmaxConfig(cutoffs=cutoffs, factor=factor))
    torch_layer = nn.AdaptiveLogSoftmaxWithLoss(H, V, list(cutoffs), div_value=factor, head_bias=True).double()
    torch_layer.load_state_dict(output_layer.state_dict())
    hidden, targets = data()
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    value, expected = output_layer.loss(ours, targets), torch_layer(theirs, targets)
    exactly(value, expected.loss)
    exactly(output_layer.target_log_probs(hidden, targets), expected.output)
    exactly(output_layer.log_probs(hidden), torch_layer.log_prob(hidden))
    exactly(
        gradients(value, ours, *output_layer.parameters()), gradients(expected.loss, theirs, *torch_layer.parameters())
    )


def test_adaptive_softmax_matches_its_equation() -> None:
    """log p(v) = log p(cluster) + log p(v | cluster) holds for a token of each cluster."""
    output_layer = layer(KINDS["adaptive"])
    h = data()[0][0]
    head = (output_layer.head.weight @ h + output_layer.head.bias).softmax(0)
    first = (output_layer.tail[0][1].weight @ output_layer.tail[0][0].weight @ h).softmax(0)
    second = (output_layer.tail[1][1].weight @ output_layer.tail[1][0].weight @ h).softmax(0)
    assert (len(head), len(first), len(second)) == (9, 13, 20)
    assert output_layer.tail[0][0].weight.shape == (4, H) and output_layer.tail[1][0].weight.shape == (2, H)
    expected = torch.stack([head[3], head[7] * first[9 - 7], head[8] * second[25 - 20]]).log()
    exactly(output_layer.log_probs(h)[torch.tensor([3, 9, 25])], expected)


def test_unused_clusters_of_adaptive_softmax_have_no_gradient() -> None:
    output_layer = layer(KINDS["adaptive"])
    hidden, _ = data()
    value = output_layer.loss(hidden, torch.full((N,), 2))
    value.backward()
    exactly(value, -output_layer.log_probs(hidden)[:, 2].mean())
    assert not output_layer.tail[1][1].weight.grad.any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cutoffs": []}, "cutoffs must be ascending positive integers; got \\[\\]"),
        ({"cutoffs": [0, 5]}, "got \\[0, 5\\]"),
        ({"cutoffs": [5, 5]}, "must be ascending positive integers; got \\[5, 5\\]"),
        ({"cutoffs": [9, 5]}, "must be ascending positive integers; got \\[9, 5\\]"),
        ({"cutoffs": [5], "factor": 0.5}, "factor must be at least 1; got 0.5"),
        ({"cutoffs": "5"}, "cutoffs: must be a list"),
        ({}, "cutoffs: missing"),
    ],
)
def test_invalid_cutoffs_are_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(SoftmaxConfig, {"kind": "adaptive", **options})


@pytest.mark.parametrize("cutoffs", [(40,), (10, 40), (10, 41), (5000,)])
def test_cutoffs_beyond_the_vocabulary_are_rejected(cutoffs: tuple[int, ...]) -> None:
    config = AdaptiveSoftmaxConfig(cutoffs=cutoffs, factor=1.0)
    with pytest.raises(UsageError, match=f"vocabulary, 40 tokens; got .*{cutoffs[-1]}\\]. Lower or remove"):
        config.build(H, V)
    config.build(H, 5001)


def test_clusters_of_size_zero_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"would have 0 dimensions: model\.hidden=8, .* Use fewer cutoffs"):
        AdaptiveSoftmaxConfig(cutoffs=(5, 10)).build(H, V)
    with pytest.raises(UsageError, match="no single matrix for all tokens"):
        AdaptiveSoftmaxConfig(cutoffs=(5,)).build(H, V, nn.Parameter(torch.zeros(V, H)))


# --- sampled ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["uniform", "log-uniform", "unigram"])
@pytest.mark.parametrize("samples", [V, 10 * V])
def test_sampling_the_whole_vocabulary_gives_the_full_softmax(sampler: str, samples: int) -> None:
    output_layer, (hidden, targets) = sampled(sampler, samples), data()
    value, full = output_layer.loss(hidden, targets), F.cross_entropy(output_layer(hidden), targets)
    exactly(value, full)
    exactly(gradients(value, *output_layer.parameters()), gradients(full, *output_layer.parameters()))


def test_sampling_almost_the_vocabulary_differs_from_the_full_softmax() -> None:
    """Negative control: the loss of the layer depends on the samples."""
    output_layer, (hidden, targets) = sampled("uniform", V - 1), data()
    value, full = output_layer.loss(hidden, targets), F.cross_entropy(output_layer(hidden), targets)
    assert 1e-4 < abs(value - full) < 0.3 * full


def test_blackout_over_the_vocabulary_matches_its_equation() -> None:
    """J = log p(y) + Σ_{v ≠ y} log(1 − p(v)) with the full softmax p."""
    output_layer, (hidden, targets) = sampled("blackout", V), data()
    p = output_layer(hidden).softmax(-1)
    total = 0.0
    for row, target in enumerate(targets.tolist()):
        total += p[row, target].log() + sum((1 - p[row, v]).log() for v in range(V) if v != target)
    exactly(output_layer.loss(hidden, targets), -torch.as_tensor(total) / N)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sampled_loss_matches_its_equation(sampler: str) -> None:
    output_layer, (hidden, targets) = sampled(sampler, 9), data()
    torch.manual_seed(5)
    drawn, log_chance = output_layer.draw()
    chance = log_chance.exp()
    total, hits = 0.0, 0
    for h, y in zip(hidden, targets.tolist(), strict=True):
        others = [v for v in drawn.tolist() if v != y]
        hits += len(others) < len(drawn)
        weight = {v: (output_layer.weight[v] @ h + output_layer.bias[v]).exp() / chance[v] for v in [y, *others]}
        p = {v: w / sum(weight.values()) for v, w in weight.items()}
        total += -p[y].log()
        if sampler == "blackout":
            total += sum(-(1 - p[v]).log() for v in others)
    assert hits > 0  # some targets are among the samples
    torch.manual_seed(5)
    exactly(output_layer.loss(hidden, targets), torch.as_tensor(total) / N)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_inclusion_probabilities_match_frequencies(sampler: str) -> None:
    """For every token, the mean over many draws of 1/π if the token was drawn, and otherwise 0, is 1."""
    output_layer, rounds = sampled(sampler, 12), 4000
    torch.manual_seed(0)
    total, squares = torch.zeros(V, dtype=torch.float64), torch.zeros(V, dtype=torch.float64)
    for _ in range(rounds):
        drawn, log_chance = output_layer.draw()
        assert len(set(drawn.tolist())) == 12
        seen = torch.zeros(V, dtype=torch.float64).index_fill(0, drawn, 1.0) / log_chance.exp()
        total, squares = total + seen, squares + seen**2
    mean = total / rounds
    error = ((squares / rounds - mean**2) / rounds).sqrt()
    assert ((mean - 1).abs() < 4.5 * error).all()
    assert error.max() < 0.1


def test_proposals_match_their_formulas() -> None:
    rank = torch.arange(V, dtype=torch.float64)
    log_uniform = (torch.log(rank + 2) - torch.log(rank + 1)) / math.log(V + 1)
    for sampler, expected in (
        ("uniform", torch.full((V,), 1 / V, dtype=torch.float64)),
        ("log-uniform", log_uniform),
        ("unigram", COUNTS**0.4 / (COUNTS**0.4).sum()),
        ("blackout", COUNTS**0.4 / (COUNTS**0.4).sum()),
    ):
        torch.testing.assert_close(sampled(sampler, 3).proposal, expected.double(), rtol=1e-5, atol=0)
    powers = SampledSoftmaxConfig(sampler="unigram", alpha=1.0).build(H, 3)
    powers.set_counts(torch.tensor([6, 0, 3]))  # tokens with count 0 are treated as having count 1
    torch.testing.assert_close(powers.proposal, torch.tensor([0.6, 0.1, 0.3]))


@pytest.mark.parametrize("sampler", ["uniform", "log-uniform", "unigram"])
def test_gradient_converges_to_the_full_gradient(sampler: str) -> None:
    hidden, targets = data()
    distances = []
    for samples in (4, 16, 36):
        output_layer = sampled(sampler, samples)
        expected = gradients(F.cross_entropy(output_layer(hidden), targets), output_layer.weight)[0]
        torch.manual_seed(0)
        mean = sum(gradients(output_layer.loss(hidden, targets), output_layer.weight)[0] for _ in range(300)) / 300
        distances.append(float((mean - expected).norm() / expected.norm()))
    assert distances[0] > 1.5 * distances[1] > 1.5**2 * distances[2], distances
    assert distances[2] < 0.1


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sampled_training_learns_the_distribution(sampler: str) -> None:
    """Training samples 12 of 40 tokens per step."""
    torch.manual_seed(0)
    truth = COUNTS / COUNTS.sum()
    output_layer = build(SoftmaxConfig, {"kind": "sampled", "sampler": sampler, "samples": 12}).build(1, V)
    output_layer.initialize()
    output_layer.set_counts(COUNTS)
    optimizer = torch.optim.Adam([output_layer.bias], lr=0.1)
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 400)
        loss = output_layer.loss(torch.zeros(256, 1), torch.multinomial(truth, 256, replacement=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learned = output_layer.log_probs(torch.zeros(1, 1))[0]
    assert (truth * (truth.log() - learned)).sum() < 0.02  # the initial value is 0.8


def test_samples_depend_only_on_the_seed() -> None:
    output_layer = sampled("log-uniform", 9)
    drawn = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        drawn.append(output_layer.draw()[0].tolist())
    assert drawn[0] == drawn[2] != drawn[1]


def test_blackout_loss_is_finite_for_extreme_logits() -> None:
    output_layer = sampled("blackout", V)
    with torch.no_grad():
        output_layer.bias[3] += 200
    hidden, targets = data()
    value = output_layer.loss(hidden, targets)
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(value, *output_layer.parameters()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "samples must be at least 1; got 0"),
        ({"alpha": 1.5}, "alpha must be between 0 and 1; got 1.5"),
        ({"sampler": "blackuot"}, "did you mean blackout"),
    ],
)
def test_invalid_samples_are_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(SoftmaxConfig, {"kind": "sampled", **options})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_gpu_results_match_cpu_results(config: Any, precision: torch.dtype) -> None:
    """With autocast, hidden states have half precision and weights have single precision."""
    output_layer, (hidden, targets) = layer(config).float(), data()
    expected = output_layer.target_log_probs(hidden.float(), targets)
    output_layer, hidden, targets = output_layer.cuda(), hidden.cuda().to(precision), targets.cuda()
    with torch.autocast("cuda", precision, enabled=precision != torch.float32):
        result, value = output_layer.target_log_probs(hidden, targets), output_layer.loss(hidden, targets)
        log_probs = output_layer.log_probs(hidden)
    assert result.dtype == value.dtype == log_probs.dtype == torch.float32
    close = 1e-4 if precision == torch.float32 else 0.05
    torch.testing.assert_close(result.cpu(), expected, atol=close, rtol=0)
    value.backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all() for parameter in output_layer.parameters()
    )
