"""Transformers with every kind of encoder layer."""

from typing import Any

import pytest
import torch
from tests.models.small_seq2seq import V, exactly, log_probs, some_batch, source_of
from tests.models.small_transformer import transformer

from seqloom.config import build
from seqloom.core.errors import UsageError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.mixers import MIXERS, DilatedConvolution, RecurrentMixer, WindowedSelfAttention


@pytest.mark.parametrize("kind", MIXERS)
def test_single_row_gives_the_same_result_as_in_a_padded_batch(kind: str) -> None:
    model, batch = transformer(encoder_layer=kind, encoder_layers=3), some_batch()
    expected = log_probs(model, batch)
    wider = {**batch, "source": torch.nn.functional.pad(batch["source"], (0, 4), value=7)}
    wider["source_mask"] = torch.nn.functional.pad(batch["source_mask"], (0, 4))
    exactly(log_probs(model, wider), expected)
    for row, length in enumerate(batch["source_mask"].sum(dim=1).tolist()):
        alone = {key: value[row : row + 1] for key, value in batch.items()}
        alone |= {"source": alone["source"][:, :length], "source_mask": alone["source_mask"][:, :length]}
        exactly(log_probs(model, alone), expected[row : row + 1])


@pytest.mark.parametrize("kind", MIXERS)
def test_every_encoder_parameter_has_a_gradient(kind: str) -> None:
    model = transformer(encoder_layer=kind, encoder_layers=2)
    model.loss(some_batch())[0].backward()
    for block in model.encoder:
        assert isinstance(block.mixer, MIXERS[kind])
        for name, parameter in block.mixer.named_parameters():
            if name != "attention.k.bias":  # this bias adds a constant to all scores of a row, which has no effect
                assert parameter.grad is not None and parameter.grad.any(), name


@pytest.mark.parametrize("kind", MIXERS)
def test_pairs_are_memorized_and_generated(kind: str) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "d_ff": 48, "dropout": 0.0}
    model = TransformerConfig(encoder_layer=kind, **sizes).build(V)  # type: ignore[arg-type]
    batch = some_batch((5, 2, 4, 3, 4, 5, 3, 2), (4, 3, 2, 5, 4, 4, 2, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        value, _ = model.loss(batch)
        value.backward()
        optimizer.step()
        losses.append(value.item())
        if losses[-1] < 0.02:
            break
    assert losses[0] > 1.5 and losses[-1] < 0.05
    model.eval()
    said = beam_search(model, options=BeamConfig(beam=2, max_length=8), end=0, source=source_of(batch))
    for row, (result, *_) in enumerate(said):
        expected = batch["targets"][row][batch["target_mask"][row]].tolist()
        assert [*result.tokens] in (expected, expected[:-1])


def test_options_are_passed_to_the_layers() -> None:
    windowed = TransformerConfig(encoder_layer="windowed", window=5, d_model=8, heads=2).build(V)
    assert all(isinstance(block.mixer, WindowedSelfAttention) and block.mixer.reach == 5 for block in windowed.encoder)
    recurrent = TransformerConfig(encoder_layer="recurrent", cell="gru", d_model=8, heads=2).build(V)
    for block in recurrent.encoder:
        assert isinstance(block.mixer, RecurrentMixer)
        assert type(block.mixer.layer.forwards.cell).__name__ == "GRU"
    dilated = TransformerConfig(encoder_layer="dilated", kernel=5, d_model=8, heads=2, encoder_layers=3).build(V)
    result = [block.mixer.dilation for block in dilated.encoder if isinstance(block.mixer, DilatedConvolution)]
    assert result == [1, 3, 9], "the dilation grows with the depth"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoder_layer": "recurent"}, ["recurrent"]),
        ({"encoder_layer": "convolution", "kernel": 2}, ["kernel must be odd and at least 3"]),
        ({"encoder_layer": "windowed", "window": 0}, ["window must be at least 1; got 0"]),
        ({"encoder_layer": "recurrent", "cell": "lsmt"}, ["no cell is called 'lsmt': did you mean lstm"]),
        (
            {"window": 4, "cell": "gru"},
            ["window applies only to windowed layers", "cell applies only to recurrent layers"],
        ),
        (
            {"encoder_layer": "dilated", "kernel": 4, "window": 2, "encoder_layers": -1},
            ["kernel must be odd", "window applies only to windowed layers", "encoder_layers: must be at least 0"],
        ),
    ],
)
def test_all_problems_are_reported(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        build(TransformerConfig, options)
    for word in words:
        assert word in str(caught.value)
