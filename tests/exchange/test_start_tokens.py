"""Start tokens: a model that adds them gives the same results as a model whose batches contain them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.small_seq2seq import V, exactly, log_probs, some_batch, source_of
from tests.models.small_transformer import transformer

from seqloom.core.errors import UsageError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.nn.positions import PositionsConfig

LEARNED = {"kind": "learned", "max_length": 12}
ALL: dict[str, Any] = {"source_bos": 3, "bos": 5, "target_bos": 4}


def add_tokens(batch, bos=None, source_bos=None, target_bos=None):
    """Add these tokens to a batch for a model that does not add tokens."""
    made = dict(batch)
    if source_bos is not None:
        made["source"] = F.pad(batch["source"], (1, 0), value=source_bos)
        made["source_mask"] = F.pad(batch["source_mask"], (1, 0), value=True)
    if bos is not None:
        made["inputs"] = torch.cat([torch.full_like(batch["inputs"][:, :1], bos), batch["inputs"][:, 1:]], dim=1)
    if target_bos is not None:
        first, rest = made["inputs"][:, :1], made["inputs"][:, 1:]
        made["inputs"] = torch.cat([first, torch.full_like(first, target_bos), rest], dim=1)
        made["target_mask"] = F.pad(batch["target_mask"], (1, 0), value=True)
        made["targets"] = F.pad(batch["targets"], (1, 0), value=target_bos)
    return made


@pytest.mark.parametrize("names", [["bos"], ["source_bos"], ["target_bos"], list(ALL)], ids=" ".join)
@torch.no_grad()
def test_added_tokens_match_given_tokens(names):
    added = {name: ALL[name] for name in names}
    model, plain = transformer(positions=LEARNED, **added), transformer(positions=LEARNED)
    batch = some_batch()
    whole, before = add_tokens(batch, **added), int("target_bos" in added)
    real = batch["target_mask"]
    exactly(log_probs(model, batch)[real], log_probs(plain, whole)[:, before:][real])
    exactly(model.target_log_probs(batch), plain.target_log_probs(whole)[:, before:])
    read, width = plain.encoder_states(*source_of(whole).values()), batch["source"].shape[1]
    exactly(
        model.encoder_states(*source_of(batch).values())[batch["source_mask"]], read[:, -width:][batch["source_mask"]]
    )
    masked = model(batch["source"], batch["source_mask"], batch["inputs"], batch["target_mask"])
    at_once = model(batch["source"], batch["source_mask"], batch["inputs"])
    exactly(masked[real], at_once[real])


@torch.no_grad()
def test_attention_weights_omit_start_tokens():
    model, plain, batch = transformer(positions=LEARNED, **ALL), transformer(positions=LEARNED), some_batch()
    found, whole = model.attentions(batch), plain.attentions(add_tokens(batch, **ALL))
    for own, other in zip(found["cross"], whole["cross"], strict=True):
        exactly(own, other[:, :, 1:, 1:])
    for own, other in zip(found["encoder"], whole["encoder"], strict=True):
        exactly(own, other[:, :, 1:, 1:])
    for own, other in zip(found["decoder"], whole["decoder"], strict=True):
        exactly(own[..., 1:], other[:, :, 1:, 2:])
        exactly(own.sum(dim=-1), batch["target_mask"].unsqueeze(1).to(own).expand(own.shape[:3]))
    looked, wanted = model.attention(batch), plain.attention(add_tokens(batch, **ALL))
    assert looked is not None and wanted is not None
    exactly(looked, wanted[:, 1:, 1:])


def test_search_with_start_tokens_matches_search_with_forced_token():
    """Sums of log-probabilities differ by log p of the forced token, but their order is equal."""
    model, plain, batch = transformer(**ALL), transformer(), some_batch()
    sums = BeamConfig(beam=4, n_best=4, length_penalty=0.0, max_length=9)
    found = beam_search(model, options=sums, end=0, source=source_of(batch))
    forced = torch.full((len(batch["source"]), 1), ALL["target_bos"])
    with_end = transformer(bos=ALL["bos"])
    longer = BeamConfig(beam=4, n_best=4, length_penalty=0.0, max_length=10)
    source = source_of(add_tokens(batch, source_bos=ALL["source_bos"]))
    others = beam_search(with_end, options=longer, end=0, source=source, prompt=forced)
    assert [[one.tokens for one in row] for row in found] == [[one.tokens[1:] for one in row] for row in others]
    plainly = beam_search(plain, options=sums, end=0, source=source_of(batch))  # control
    assert [[one.tokens for one in row] for row in found] != [[one.tokens for one in row] for row in plainly]


def test_start_tokens_use_positions():
    config = StartTokenConfig(positions=PositionsConfig(kind="learned", max_length=12), **ALL)
    assert (config.longest_source, config.longest_target) == (11, 11)
    model = transformer(positions=LEARNED, **ALL)
    log_probs(model, some_batch((11,), (11,)))
    for sizes in (((12,), (3,)), ((3,), (12,))):
        with pytest.raises(UsageError, match="has 12 positions"):
            log_probs(model, some_batch(*sizes))


def test_start_tokens_must_be_in_vocabulary():
    with pytest.raises(ValueError, match="bos must be at least 0; got -1"):
        StartTokenConfig(bos=-1)
    with pytest.raises(UsageError, match=rf"model.source_bos must be one of the {V} tokens .* got {V}"):
        StartTokenConfig(source_bos=V).build(V)
