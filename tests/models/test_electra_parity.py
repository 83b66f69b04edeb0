"""ELECTRA compared with `transformers` for equal random weights: logits of the discriminator and the generator."""

from typing import Any

import pytest
import torch
from tests.models.test_bert_parity import LAYER, rows, transformers_inputs
from torch import nn

from seqloom.models.electra import Electra, ElectraConfig, GeneratorConfig
from seqloom.nn.positions import PositionsConfig

transformers = pytest.importorskip("transformers")

V, LONGEST = 37, 20
SHAPES: list[dict[str, Any]] = [
    {"d_model": 16, "heads": 4, "layers": 2, "d_ff": 24, "activation": "gelu"},
    {"d_model": 24, "heads": 3, "layers": 1, "d_ff": 40, "activation": "gelu"},
    {"d_model": 30, "heads": 5, "layers": 3, "d_ff": 20, "activation": "gelu", "tied": False},
]
SHARES = {0: 0.25, 1: 0.5, 2: 0.6}
EMBEDDED = {
    "backbone.embedded.embed": "electra.embeddings.word_embeddings",
    "backbone.embedded.positions": "electra.embeddings.position_embeddings",
    "backbone.embedded.segments": "electra.embeddings.token_type_embeddings",
    "backbone.embedded.norm": "electra.embeddings.LayerNorm",
}
MODEL = {
    **EMBEDDED,
    "dense": "discriminator_predictions.dense",
    "detect": "discriminator_predictions.dense_prediction",
}
GENERATOR = {
    **EMBEDDED,
    "generator.project": "electra.embeddings_project",
    "generator.dense": "generator_predictions.dense",
    "generator.dense_norm": "generator_predictions.LayerNorm",
}


def transformers_name(name: str, names: dict[str, str], blocks: str) -> str | None:
    """Return the name of a parameter in `transformers`, or None."""
    if names is GENERATOR and name in ("generator.bias", "generator.output"):
        return f"generator_lm_head.{'bias' if name.endswith('bias') else 'weight'}"
    module, _, kind = name.rpartition(".")
    if module.startswith(blocks):
        number, part = module.removeprefix(blocks).split(".", 1)
        return f"electra.encoder.layer.{number}.{LAYER[part]}.{kind}"
    return f"{names[module]}.{kind}" if module in names else None


def ours(number: int) -> Electra:
    torch.manual_seed(7)
    positions = PositionsConfig(kind="learned", max_length=LONGEST)
    generator = GeneratorConfig(size_ratio=SHARES[number], layers=1 + number)
    model = ElectraConfig(**SHAPES[number], dropout=0.0, positions=positions, generator=generator).build(V)
    for name, parameter in model.named_parameters():
        nn.init.uniform_(parameter, *((0.5, 1.5) if "norm.weight" in name else (-0.5, 0.5)))
    return model.double().eval()


def theirs(model: Electra, kind: str) -> Any:
    config: Any
    config, names, blocks = model.config, MODEL, "backbone.blocks."
    if kind == "ElectraForMaskedLM":
        config, names, blocks = model.config.generator_options(), GENERATOR, "generator.blocks."
    other = transformers.ElectraConfig(
        vocab_size=V + 3,
        embedding_size=model.config.d_model,
        hidden_size=config.d_model,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.feed_forward_size,
        max_position_embeddings=LONGEST,
        layer_norm_eps=1e-5,
        tie_word_embeddings=model.config.tied,
        attn_implementation="eager",
    )
    other_model = getattr(transformers, kind)(other).double().eval()
    goals = dict(other_model.named_parameters())
    copied = set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (result := transformers_name(name, names, blocks)) is not None and result in goals:
                goals[result][: len(parameter)].copy_(parameter)
                copied.add(result)
    # One layer norm has another epsilon in `transformers`. Set it to the value of seqloom.
    for module in other_model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    assert goals.keys() - copied <= {"generator_lm_head.weight"}, goals.keys() - copied
    return other_model


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_detection_logits_match_those_of_transformers(number: int) -> None:
    model, batch = ours(number), rows()
    other = theirs(model, "ElectraForPreTraining")
    h = model.read(**batch)
    result = other(**transformers_inputs(batch), output_hidden_states=True, labels=batch["tokens"] % 2)
    real = batch["mask"]
    torch.testing.assert_close(h[real], result.hidden_states[-1][real], rtol=1e-10, atol=1e-10)
    logits = model.detection_logits(h)
    torch.testing.assert_close(logits[real], result.logits[real], rtol=1e-10, atol=1e-10)
    loss = nn.functional.binary_cross_entropy_with_logits(logits[real], (batch["tokens"] % 2)[real].double())
    torch.testing.assert_close(loss.float(), result.loss)  # `transformers` computes in single precision


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_generator_logits_match_transformers(number: int) -> None:
    model, batch = ours(number), rows()
    other = theirs(model, "ElectraForMaskedLM")
    logits = model.masked_logits(model.generate(**batch))
    result = other(**transformers_inputs(batch)).logits
    torch.testing.assert_close(logits[batch["mask"]], result[batch["mask"]][:, :V], rtol=1e-10, atol=1e-10)


def test_changed_weight_changes_the_logits() -> None:
    model, batch = ours(0), rows()
    other = theirs(model, "ElectraForPreTraining")
    with torch.no_grad():
        model.dense.weight[0, 0] += 1
    result = model.detection_logits(model.read(**batch))
    assert (result - other(**transformers_inputs(batch)).logits).abs().max() > 1e-3
