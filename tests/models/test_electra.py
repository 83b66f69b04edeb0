"""ELECTRA: sampling, inputs of both networks, losses, gradients and training."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.data.masking import MaskedBatches, MasksConfig, pack
from seqloom.models.electra import Electra, ElectraConfig, GeneratorConfig, replace_tokens, sample_tokens
from seqloom.nn.positions import PositionsConfig

V, S = 30, 24
SHAPE: dict[str, Any] = {"d_model": 16, "heads": 4, "layers": 2, "dropout": 0.0}
TEXTS = [[5, 6, 7], [8, 9, 10, 11], [12, 13], [4] * 9, [14, 15, 16, 17, 18, 19, 20, 21, 22, 23], [3, 2, 1] * 7]


def electra(**changes: Any) -> Electra:
    torch.manual_seed(3)
    positions = PositionsConfig(kind="rotary")
    model = ElectraConfig(**{**SHAPE, "positions": positions, **changes}).build(V).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def batch_of(model: Electra, texts: list[list[int]] = TEXTS) -> dict[str, Tensor]:
    masks = MasksConfig(mlm_probability=0.4, mask_replace_prob=1.0, random_replace_prob=0.0)
    source = pack(texts, model.specials, S)
    batches = MaskedBatches(source, masks=masks, masking="static", specials=model.specials, vocabulary=V, size=8)
    batch = batches.batch(1, 0)
    batch.pop("read")
    return batch


def originals(batch: dict[str, Tensor]) -> Tensor:
    """Return the texts before masking."""
    tokens = batch["tokens"].clone()
    for row, (positions, targets) in enumerate(zip(batch["positions"], batch["targets"], strict=True)):
        for position, target in zip(positions.tolist(), targets.tolist(), strict=True):
            if target >= 0:
                assert tokens[row, position] == V + 2  # all selected tokens are masked
                tokens[row, position] = target
    return tokens


def test_sample_frequencies_match_the_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([9.0, 0.0, 1.0, -1.0, 2.0])
    drawn = sample_tokens(logits.expand(200_000, 5), torch.rand(200_000))
    expected = F.softmax(logits.index_fill(0, torch.tensor([0]), -torch.inf), dim=0)
    result = drawn.bincount(minlength=5) / len(drawn)
    assert result[0] == 0 and torch.allclose(result, expected, atol=0.005)  # END is never sampled
    ends = sample_tokens(logits.expand(2, 5), torch.tensor([0.0, 1.0 - 2**-24]))
    assert ends.tolist() == [1, 4]


def test_only_masked_positions_are_replaced() -> None:
    model = electra()
    batch = batch_of(model)
    real = originals(batch)
    outputs = model(batch, torch.rand(batch["targets"].shape, generator=torch.Generator().manual_seed(1)))
    masked = batch["tokens"] == model.specials.mask
    assert masked.sum() == (batch["targets"] >= 0).sum() > 8
    assert torch.equal(outputs.tokens[~masked], batch["tokens"][~masked])
    assert (outputs.tokens[masked] < V).all() and (outputs.tokens[masked] > 0).all()
    assert torch.equal(outputs.replaced, outputs.tokens != real) and outputs.replaced.any()
    assert torch.equal(outputs.counted, batch["mask"] & (real < V))


def test_discriminator_reads_samples_and_generator_reads_masks() -> None:
    model = electra()
    batch = batch_of(model)
    outputs = model(batch, torch.full(batch["targets"].shape, 0.5))
    h = model.read(outputs.tokens, batch["mask"], None, batch["documents"])
    torch.testing.assert_close(outputs.logits, model.detection_logits(h), rtol=0, atol=1e-12)
    logits = model.masked_logits(model.generate(batch["tokens"], batch["mask"], None, batch["documents"]))
    rows = torch.arange(len(logits)).unsqueeze(1)
    torch.testing.assert_close(outputs.masked, logits[rows, batch["positions"]], rtol=0, atol=1e-12)


def test_correct_generator_replaces_no_token() -> None:
    model = electra()
    batch = batch_of(model, [[5, 6, 7, 8]] * 3)
    targets = batch["targets"]
    sure = F.one_hot(targets.clamp(min=0), V).double() * 1000
    drawn = sample_tokens(sure, torch.rand(targets.shape))
    assert torch.equal(replace_tokens(batch["tokens"], batch["positions"], targets >= 0, drawn), originals(batch))


def test_loss_is_the_weighted_sum_of_both_losses() -> None:
    for weight in (50.0, 2.0):
        model = electra(detection_weight=weight)
        batch = batch_of(model)
        torch.manual_seed(4)
        result = model.loss(batch)
        torch.manual_seed(4)
        outputs, known = model(batch), batch["targets"] >= 0
        generator_loss = F.cross_entropy(outputs.masked[known], batch["targets"][known])
        counted = outputs.counted
        detection_loss = F.binary_cross_entropy_with_logits(outputs.logits[counted], outputs.replaced[counted].double())
        torch.testing.assert_close(result, generator_loss + weight * detection_loss)


def test_generator_has_no_gradient_of_the_detection_loss() -> None:
    """No gradient flows through the samples. Only the shared embeddings have a gradient of the detection loss."""
    model = electra()
    batch = batch_of(model)
    outputs = model(batch)
    generator_loss, detection_loss = model.losses(outputs, batch["targets"])
    parameters = dict(model.named_parameters())
    of_telling = dict(
        zip(
            parameters,
            torch.autograd.grad(detection_loss, list(parameters.values()), retain_graph=True, allow_unused=True),
            strict=True,
        )
    )
    of_filling = dict(
        zip(parameters, torch.autograd.grad(generator_loss, list(parameters.values()), allow_unused=True), strict=True)
    )
    for name in parameters:
        assert (of_telling[name] is None) == name.startswith("generator."), name
        shared = name.startswith(("generator.", "backbone.embedded."))
        assert (of_filling[name] is not None and bool(of_filling[name].any())) == shared or "segments" in name, name


def test_generator_is_a_narrower_model() -> None:
    config = ElectraConfig(d_model=24, heads=6, layers=4, d_ff=60, generator=GeneratorConfig(size_ratio=0.25))
    assert (
        config.generator_options().d_model,
        config.generator_options().heads,
        config.generator_options().feed_forward_size,
        config.generator_options().layers,
    ) == (
        8,
        2,
        20,
        4,
    )
    assert (
        ElectraConfig(d_model=24, heads=6, generator=GeneratorConfig(size_ratio=0.01, layers=1))
        .generator_options()
        .d_model
        == 4
    )
    assert (
        ElectraConfig(d_model=24, heads=6, kv_heads=2, generator=GeneratorConfig(size_ratio=1))
        .generator_options()
        .kv_heads
        is None
    )


def test_generator_and_discriminator_share_embeddings() -> None:
    model = electra()
    rows = [
        name for name, parameter in model.named_parameters() if parameter.dim() == 2 and len(parameter) in (V, V + 3)
    ]
    assert rows == ["backbone.embedded.embed.weight"]


def test_detection_is_learned() -> None:
    """Each row repeats one token, so replaced tokens can be detected."""
    torch.manual_seed(1)
    model = ElectraConfig(
        **{**SHAPE, "d_model": 32, "positions": PositionsConfig(kind="rotary"), "norm_first": True, "init": 0.1}
    ).build(V)
    texts = [[number] * 20 for number in range(1, 9)]
    batch = batch_of(model, texts)
    optimizer = torch.optim.Adam([p for n, p in model.named_parameters() if not n.startswith("generator.")], lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
    outputs = model(batch)
    right = (outputs.logits > 0) == outputs.replaced
    assert right[outputs.counted].float().mean() > 0.95 and outputs.replaced.any()


def test_all_problems_are_reported() -> None:
    wrong = {"kind": "electra", "detection_weight": 0, "generator": {"size_ratio": 1.5, "layers": 0}, "layers": 0}
    with pytest.raises(UsageError) as error:
        build(ElectraConfig, wrong, source="the recipe")
    for words in (
        "generator.size_ratio: must be at most 1",
        "generator.layers: must be at least 1",
        "detection_weight: must be",
    ):
        assert words in str(error.value)
    assert "  layers: must be at least 1" in str(error.value)
