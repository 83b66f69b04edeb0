"""Beam search with Transformers gives the same results with and without a KV cache."""

from typing import Any

import pytest
import torch
from tests.decoding.test_beam_models import END, Uncached, V, assert_same, batch
from tests.models.small_transformer import SWITCHES
from tests.models.test_transformer_controls import select_without_cache
from torch import nn

from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.nn.positions import PositionsConfig

NAMES = ["2017", "before", "learned", "rotary-halves", "today", "aligned", "recurrent", "begins"]


def translator(name: str) -> Any:
    """Build a model whose predictions differ clearly between tokens."""
    options = {"d_model": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, **SWITCHES[name]}
    kind = options.pop("positions", "sinusoidal")
    positions = PositionsConfig(**({"kind": kind} if isinstance(kind, str) else kind))
    torch.manual_seed(3)
    model = StartTokenConfig(positions=positions, **options).build(V).double().eval()
    for name, parameter in model.named_parameters():
        nn.init.uniform_(parameter, *((0.5, 1.5) if "norm.weight" in name else (-0.7, 0.7)))
    return model


def cached_and_not(model: Any, coverage: float = 0.3) -> list[Any]:
    source = batch()
    options = BeamConfig(beam=4, n_best=3, coverage_penalty=coverage, max_length=20)
    results = [
        beam_search(each_model, options=options, end=END, source=source, attention=True)
        for each_model in (model, Uncached(model))
    ]
    assert_same(*results)
    return results[0]


@pytest.mark.parametrize("name", NAMES)
def test_cached_search_matches_uncached_search(name):
    model = translator(name)
    result, source = cached_and_not(model), batch()
    assert len({tuple(h.tokens) for row in result for h in row}) > 4
    for position, row in enumerate(result):
        for h in row:
            output = torch.tensor([[*h.tokens, END] if h.finished else h.tokens])
            taught = {
                "source": source["tokens"][position : position + 1],
                "source_mask": source["mask"][position : position + 1],
                "inputs": torch.cat([torch.tensor([[END]]), output[:, :-1]], dim=1),
                "targets": output,
                "target_mask": torch.ones_like(output, dtype=torch.bool),
            }
            assert h.token_log_probs == pytest.approx(model.target_log_probs(taught)[0].tolist(), abs=1e-9)
            width = int(source["mask"][position].sum())
            torch.testing.assert_close(h.attention, model.attention(taught)[0, :, :width].float())


@pytest.mark.parametrize("name", NAMES)
def test_batched_search_with_prompts_matches_single_searches(name):
    model, source = translator(name), batch()
    prompt = torch.tensor([[3, 4, 5], [7, 0, 0], [1, 2, 0], [0, 0, 0]])
    options = BeamConfig(beam=5, n_best=5, max_length=20)
    together = beam_search(model, options=options, end=END, source=source, prompt=prompt, prompt_mask=prompt > 0)
    for row in range(4):
        width, prefix = int(source["mask"][row].sum()), prompt[row : row + 1, : int((prompt[row] > 0).sum())]
        alone = {key: values[row : row + 1, :width] for key, values in source.items()}
        assert_same([together[row]], beam_search(model, options=options, end=END, source=alone, prompt=prefix))
    start, real = torch.cat([torch.full((4, 1), END), prompt], dim=1), torch.cat([torch.ones(4, 1), prompt], dim=1) > 0
    sampling = SamplingConfig(temperature=0)
    steps = list(generate(model, start, options=sampling, max_tokens=9, end=END, mask=real, source=source))
    for row in range(4):
        forced = int((prompt[row] > 0).sum())
        example = {key: values[row : row + 1] for key, values in source.items()}
        greedy = BeamConfig(beam=1, max_length=9 + forced)
        ((result,),) = beam_search(
            model, options=greedy, end=END, source=example, prompt=prompt[row : row + 1, :forced]
        )
        tokens = [int(step.tokens[row]) for step in steps]
        assert result.tokens[forced:] == (tokens[: tokens.index(END)] if END in tokens else tokens)


def test_lost_cache_changes_the_results(monkeypatch):
    """Negative control for the tests above."""
    model = translator("2017")
    cached_and_not(model)
    monkeypatch.setattr("seqloom.decoding.beam.select_rows", select_without_cache)
    monkeypatch.setattr("seqloom.core.protocols.select_rows", select_without_cache)
    with pytest.raises(AssertionError):
        cached_and_not(model)
