"""BERT compared with `transformers` for equal random weights: states, logits, loss and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqloom.models.bert import BERT, BERTConfig
from seqloom.nn.positions import PositionsConfig

transformers = pytest.importorskip("transformers")

V, LONGEST = 37, 20
SHAPES: list[dict[str, Any]] = [
    {"d_model": 16, "heads": 4, "layers": 2, "d_ff": 24, "activation": "gelu"},
    {"d_model": 24, "heads": 1, "layers": 3, "d_ff": 40, "activation": "relu"},
    {"d_model": 12, "heads": 3, "layers": 1, "d_ff": 8, "activation": "gelu-tanh"},
]
THERE = {"gelu": "gelu", "relu": "relu", "gelu-tanh": "gelu_pytorch_tanh"}
LAYER = {
    "mixer.attention.q": "attention.self.query",
    "mixer.attention.k": "attention.self.key",
    "mixer.attention.v": "attention.self.value",
    "mixer.attention.out": "attention.output.dense",
    "mixer_residual.norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
AROUND = {
    "backbone.embedded.embed": "bert.embeddings.word_embeddings",
    "backbone.embedded.positions": "bert.embeddings.position_embeddings",
    "backbone.embedded.segments": "bert.embeddings.token_type_embeddings",
    "backbone.embedded.norm": "bert.embeddings.LayerNorm",
    "dense": "cls.predictions.transform.dense",
    "dense_norm": "cls.predictions.transform.LayerNorm",
    "pool": "bert.pooler.dense",
    "next": "cls.seq_relationship",
}


def transformers_name(name: str) -> str:
    """Return the name of a parameter in `transformers`."""
    if name == "bias":
        return "cls.predictions.bias"
    module, _, kind = name.rpartition(".")
    if module.startswith("backbone.blocks."):
        _, _, number, part = module.split(".", 3)
        return f"bert.encoder.layer.{number}.{LAYER[part]}.{kind}"
    return f"{AROUND[module]}.{kind}"


def both(shape: dict[str, Any], kind: str = "BertForPreTraining") -> tuple[BERT, Any]:
    torch.manual_seed(7)
    positions = PositionsConfig(kind="learned", max_length=LONGEST)
    ours = BERTConfig(**shape, dropout=0.0, positions=positions).build(V).double().eval()
    for name, parameter in ours.named_parameters():
        nn.init.uniform_(parameter, *((0.5, 1.5) if "norm.weight" in name else (-0.5, 0.5)))
    config = transformers.BertConfig(
        vocab_size=V + 3,
        hidden_size=shape["d_model"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        intermediate_size=shape["d_ff"],
        hidden_act=THERE[shape["activation"]],
        max_position_embeddings=LONGEST,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
    )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    theirs = getattr(transformers, kind)(config).double().eval()
    theirs_by_name = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if (goal := theirs_by_name.get(transformers_name(name))) is not None:
                goal[: len(parameter)].copy_(parameter)
    missed = theirs_by_name.keys() - {transformers_name(name) for name, _ in ours.named_parameters()}
    assert missed <= {"cls.predictions.decoder.bias", "cls.predictions.decoder.weight"}  # tied to a copied parameter
    return ours, theirs


def rows() -> dict[str, Tensor]:
    """Return three pairs of texts of different lengths."""
    torch.manual_seed(11)
    tokens = torch.randint(1, V, (3, 14))
    lengths = torch.tensor([[14], [9], [11]])
    mask = torch.arange(14) < lengths
    tokens[:, 0], tokens[:, 5] = V, V + 1
    tokens[torch.arange(3), lengths[:, 0] - 1] = V + 1
    tokens[0, 3] = tokens[1, 7] = tokens[2, 2] = V + 2
    segments = (torch.arange(14) > 5).long().expand(3, -1)
    return {"tokens": tokens.where(mask, 0), "mask": mask, "segments": segments.where(mask, 0)}


def transformers_inputs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch in the format of `transformers`."""
    return {
        "input_ids": batch["tokens"],
        "attention_mask": batch["mask"].long(),
        "token_type_ids": batch["segments"],
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_attention_weights_match_transformers(shape: dict[str, Any]) -> None:
    ours, theirs = both(shape)
    batch = rows()
    h = ours.read(**batch)
    result = theirs(**transformers_inputs(batch), output_hidden_states=True, output_attentions=True)
    real = batch["mask"]
    torch.testing.assert_close(h[real], result.hidden_states[-1][real], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        ours.masked_logits(h)[real], result.prediction_logits[real][:, :V], rtol=1e-10, atol=1e-10
    )
    torch.testing.assert_close(ours.next_logits(h), result.seq_relationship_logits, rtol=1e-10, atol=1e-10)
    for weights, other in zip(ours.attentions(**batch), result.attentions, strict=True):
        rows_of = real[:, None, :, None]
        torch.testing.assert_close(weights, other * rows_of, rtol=1e-10, atol=1e-10)


def test_gradients_of_the_loss_match_transformers() -> None:
    """In `transformers`, special tokens also have logits. Their bias makes these tokens improbable."""
    ours, theirs = both(SHAPES[0])
    batch = rows()
    positions = torch.tensor([[3, 8, 0], [7, 0, 0], [2, 4, 10]])
    targets = torch.tensor([[5, 6, -1], [9, -1, -1], [1, 2, 3]])
    other = torch.tensor([0, 1, 1])
    value = ours.loss({**batch, "positions": positions, "targets": targets, "other": other})
    value.backward()
    with torch.no_grad():
        theirs.cls.predictions.bias[V:] = -1e9
    labels = torch.full_like(batch["tokens"], -100)
    for row in range(3):
        for position, target in zip(positions[row].tolist(), targets[row].tolist(), strict=True):
            if target >= 0:
                labels[row, position] = target
    result = theirs(**transformers_inputs(batch), labels=labels, next_sentence_label=other)
    result.loss.backward()
    torch.testing.assert_close(value, result.loss, rtol=1e-10, atol=1e-10)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        goal = gradients[transformers_name(name)]
        assert goal is not None and parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, goal[: len(parameter)], rtol=1e-8, atol=1e-10, msg=name)


def test_masked_language_model_matches_transformers() -> None:
    ours, theirs = both(SHAPES[1], "BertForMaskedLM")
    batch = rows()
    logits = ours.masked_logits(ours.read(**batch))
    result = theirs(**transformers_inputs(batch)).logits
    torch.testing.assert_close(logits[batch["mask"]], result[batch["mask"]][:, :V], rtol=1e-10, atol=1e-10)


def test_different_segments_change_the_logits() -> None:
    ours, theirs = both(SHAPES[0])
    batch = rows()
    result = theirs(
        **{**transformers_inputs(batch), "token_type_ids": torch.zeros_like(batch["tokens"])}
    ).prediction_logits
    logits = ours.masked_logits(ours.read(**batch))
    assert (logits[batch["mask"]] - result[batch["mask"]][:, :V]).abs().max() > 1e-3
