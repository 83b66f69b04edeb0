"""Training of the Transformer: loss, initialization, learned positions and configuration."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.small_seq2seq import V, exactly, log_probs, padded, some_batch, source_of
from tests.models.small_transformer import SWITCHES, transformer

from seqloom.config import build, to_mapping
from seqloom.core.errors import UsageError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.exchange.start_tokens import StartTokenConfig


@pytest.fixture(params=SWITCHES)
def model(request):
    return transformer(**SWITCHES[request.param])


# --- training ---------------------------------------------------------------------------------------------------------


def test_loss_is_the_mean_without_padding(model):
    batch = some_batch()
    value, count = model.loss(batch)
    result, mask = log_probs(model, batch), batch["target_mask"]
    target_log_probs = result.gather(2, batch["targets"].unsqueeze(2)).squeeze(2)
    assert count == mask.sum()
    exactly(value, -target_log_probs[mask].mean())
    exactly(model.target_log_probs(batch), target_log_probs * mask)
    smoothed, _ = model.loss(batch, 0.2)
    exactly(smoothed, -(0.8 * target_log_probs[mask] + 0.2 * result[mask].mean(dim=-1)).mean())


@pytest.mark.parametrize("name", ["2017", "today"])
def test_eight_pairs_are_memorized(name):
    torch.manual_seed(0)
    config = transformer(**SWITCHES[name]).config
    model = StartTokenConfig(**{**vars(config), "d_model": 32, "d_ff": 64, "dropout": 0.0}).build(V)
    batch = some_batch((5, 2, 4, 3, 4, 5, 3, 2), (4, 3, 2, 5, 4, 4, 2, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(120):
        optimizer.zero_grad()
        value, _ = model.loss(batch)
        if value.item() < 0.02:
            break
        value.backward()
        optimizer.step()
    assert value.item() < 0.02


@pytest.mark.parametrize("tied", ["none", "decoder", "all"])
def test_initial_distribution_is_nearly_uniform(tied):
    torch.manual_seed(0)
    model = StartTokenConfig(d_model=64, tied=tied).build(500)
    value, _ = model.loss(some_batch((9, 7), (6, 8)))
    assert abs(value.item() - math.log(500)) < 1.0
    embed: Any = model.source_embed.embed
    assert embed.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    shared = model.output.weight is model.target_embed.embed.weight
    assert shared == (tied != "none")
    assert (embed is model.target_embed.embed) == (tied == "all")


def test_dropout_is_active_only_in_training():
    batch = some_batch()
    for key in ("dropout", "attention_dropout", "activation_dropout"):
        options: dict[str, Any] = {"dropout": 0.0, key: 0.5}
        model = transformer(**options)
        calm = model.loss(batch)[0]
        exactly(model.loss(batch)[0], calm)
        assert not torch.allclose(model.train().loss(batch)[0], calm)


# --- limit of learned positions ---------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {"positions": {"kind": "learned", "max_length": 6}}


def test_text_longer_than_learned_positions_is_rejected():
    model = transformer(**SHORT)
    assert (model.config.longest_source, model.longest_target) == (6, 6)
    model.loss(some_batch((6,), (6,)))
    model.encode(*padded((6, 3), 8))  # only padding exceeds the number of positions
    with pytest.raises(UsageError, match="has 6 positions, but a source has 7 tokens"):
        model.loss(some_batch((7,), (3,)))
    with pytest.raises(UsageError, match="has 6 positions, but a target has 7 tokens"):
        model.loss(some_batch((3,), (7,)))
    batch = some_batch((3, 3), (6, 6))
    state = model.step(batch["inputs"], model.start(source_of(batch)), batch["target_mask"]).state
    with pytest.raises(UsageError, match="has 6 positions, but a target has 7 tokens"):
        model.step(batch["inputs"][:, :1], state)


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
def test_padding_beyond_learned_positions_is_accepted(causal):
    model, batch = transformer(causal=causal, **SHORT), some_batch((6, 3), (6, 4))
    wide = {name: F.pad(part, (0, 3)) for name, part in batch.items()}
    exactly(model.loss(wide)[0], model.loss(batch)[0])
    exactly(model.target_log_probs(wide)[:, :6], model.target_log_probs(batch))
    weights = model.attention(wide)
    assert weights is not None
    exactly(weights[:, :6, :6], model.attention(batch))
    exactly(model.attentions(wide)["cross"][1][:, :, :6, :6], model.attentions(batch)["cross"][1])


@torch.no_grad()
def test_rows_of_different_lengths_can_use_all_learned_positions():
    model, batch = transformer(**SHORT), some_batch((3, 3), (4, 4))
    mask = torch.tensor([[1, 0, 0, 0], [0, 0, 1, 1]]).bool()
    state = model.step(batch["inputs"], model.start(source_of(batch)), mask).state
    for _ in range(4):  # the second row uses all positions, although the batch contains eight tokens
        state = model.step(batch["inputs"][:, :1], state).state
    with pytest.raises(UsageError, match="a target has 7 tokens"):
        model.step(batch["inputs"][:, :1], state)


def test_search_stops_at_the_last_position():
    model, batch = transformer(**SHORT), some_batch((3, 5), (1, 1))
    with torch.no_grad():
        model.output.bias[0] = -50.0  # END is improbable
    source = source_of(batch)
    for options in (BeamConfig(beam=3), BeamConfig(beam=1, max_length=30)):
        result = beam_search(model, options=options, end=0, source=source)
        assert [len(row[0].tokens) for row in result] == [6, 6]
    result = beam_search(model, options=BeamConfig(beam=2, max_length=3), end=0, source=source)
    assert [len(row[0].tokens) for row in result] == [3, 3]
    with pytest.raises(UsageError, match="fewer tokens than the maximum of the model, 6; got 6"):
        beam_search(model, options=BeamConfig(), end=0, source=source, prompt=torch.ones(2, 6, dtype=torch.long))


# --- configuration ----------------------------------------------------------------------------------------------------


def test_all_problems_are_reported():
    wrong = {
        "d_model": 9,
        "heads": 4,
        "kv_heads": 3,
        "encoder_layers": -1,
        "d_ff": 0,
        "dropout": 1.0,
        "attention_dropout": -0.1,
        "align_layer": 5,
        "embed_norm": True,
        "norm": "none",
        "window": 3,
        "cell": "lstm",
    }
    with pytest.raises(UsageError, match="has 11 problems") as error:
        build(StartTokenConfig, wrong)
    for problem in (
        "encoder_layers: must be at least 0; got -1",
        "d_ff: must be at least 1; got 0",
        "  dropout: must be less than 1.0; got 1.0",
        "attention_dropout: must be at least 0.0; got -0.1",
        "d_model must be divisible by heads; got 9 and 4",
        "heads must be divisible by kv_heads; got 4 and 3",
        "align_layer must be one of the 4 decoder layers; got 5",
        "embed_norm needs a norm: set norm to layer or rms",
        "sinusoidal positions need an even d_model; got 9",
        "window applies only to windowed layers",
        "cell applies only to recurrent layers",
    ):
        assert problem in str(error.value)
    with pytest.raises(UsageError, match="even d_model / heads; got 12 / 4"):
        build(StartTokenConfig, {"d_model": 12, "positions": {"kind": "rotary"}})
    with pytest.raises(UsageError, match=r"has 1 problem:\n  heads: must be at least 1; got 0$"):
        build(StartTokenConfig, {"heads": 0})


def test_config_survives_a_recipe_round_trip(model):
    assert build(StartTokenConfig, to_mapping(model.config)) == model.config


def test_start_validates_source_and_rows():
    model, source = transformer(), source_of(some_batch())
    with pytest.raises(UsageError, match="needs a source"):
        model.start()
    with pytest.raises(ValueError, match="rows must be 3, the number of sources; got 2"):
        model.start(source, rows=2)
