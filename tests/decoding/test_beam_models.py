"""Beam search over real models: cached states do not change the results."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seqloom.classical.ngram import NGramConfig
from seqloom.classical.ngram.kneser_ney import kneser_ney
from seqloom.core.protocols import DecodeState, StepOutput, Steppable
from seqloom.core.tree import Tree, select_rows, to_device
from seqloom.decoding.beam import BeamConfig, Hypothesis, beam_search
from seqloom.decoding.generate import generate
from seqloom.decoding.mixture import Mixture
from seqloom.decoding.processors import SamplingConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig

END, V = 0, 13


class Uncached:
    """The same model without a cache. Every step reads all tokens of each hypothesis again."""

    def __init__(self, model: Steppable) -> None:
        self.model = model

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        rows = (rows or 1) if source is None else len(source["tokens"])
        return DecodeState(torch.empty(rows, 0, dtype=torch.long), source)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        prefix, source = torch.cat([state.hidden, tokens], dim=1), state.memory
        if source is None:
            output = self.model.step(prefix, self.model.start(rows=len(prefix)))
        else:
            owner = torch.arange(len(prefix)) // (len(prefix) // len(source["tokens"]))
            output = self.model.step(prefix, self.model.start(select_rows(source, owner)))
        return StepOutput(output.log_probs, DecodeState(prefix, source), output.attention)


def prepare(model: Any, scale: float = 4.0) -> Any:
    """Convert to float64 and scale the weights, so that predictions are not uniform."""
    torch.manual_seed(3)
    model = model.double().eval()
    for parameter in model.parameters():
        parameter.data.copy_(scale * torch.rand_like(parameter) - scale / 2)
    return model


def ngram() -> Any:
    stream = np.random.default_rng(1).integers(0, V, 400)
    return kneser_ney(np.append(stream, END), NGramConfig(order=3), V)


LANGUAGE = {
    "lstm": lambda: prepare(RecurrentLMConfig(cell="lstm", hidden=8, layers=2).build(V)),
    "gru with highways": lambda: prepare(
        RecurrentLMConfig(cell="gru", hidden=8, layers=2, connections="highway").build(V)
    ),
    "gpt": lambda: prepare(GPTConfig(d_model=8, heads=2, layers=2).build(V), scale=2.0),
    # With scale 2, two hypotheses have equal scores, and rounding decides between them.
    "gpt, past its context": lambda: prepare(GPTConfig(d_model=8, heads=2, layers=2, context=5).build(V), scale=3.5),
    "n-gram": ngram,
    "both": lambda: Mixture([ngram(), prepare(RecurrentLMConfig(hidden=8).build(V))], [0.5, 0.5]),
}
LUONG, BAHDANAU = AttentionConfig(), AttentionConfig(order="bahdanau", score="additive")
TRANSLATORS: dict[str, dict[str, Any]] = {
    "luong": {"attention": LUONG},
    "fed": {"attention": AttentionConfig(input_feeding=True), "cell": "lstm", "decoder_layers": 2},
    "bahdanau": {"attention": BAHDANAU},
    "coverage": {"attention": AttentionConfig(order="bahdanau", score="additive", coverage=True)},
    "every": {"attention": None, "context": "every"},
    "start": {"attention": None, "cell": "lstm", "reverse": True},
}


def translator(name: str) -> Any:
    return prepare(RecurrentSeq2SeqConfig(hidden=8, **TRANSLATORS[name]).build(V), scale=3.0)


def batch() -> dict[str, Tensor]:
    lengths = torch.tensor([5, 2, 7, 4])
    mask = torch.arange(7) < lengths[:, None]
    tokens = torch.randint(1, V, (4, 7), generator=torch.Generator().manual_seed(2)) * mask
    return {"tokens": tokens.scatter(1, lengths[:, None] - 1, END), "mask": mask}


def assert_same(actual: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for left, right in zip(actual, expected, strict=True):
        assert [(h.tokens, h.finished) for h in left] == [(h.tokens, h.finished) for h in right]
        for a, b in zip(left, right, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-9)
            assert a.token_log_probs == pytest.approx(b.token_log_probs, abs=1e-9)
            if a.attention is not None and b.attention is not None:
                torch.testing.assert_close(a.attention, b.attention)


@pytest.mark.parametrize("stopping", ["usual", "exact"])
@pytest.mark.parametrize("name", LANGUAGE)
def test_cached_language_model_search_matches_uncached_search(name: str, stopping: Any) -> None:
    model = LANGUAGE[name]()
    prompt = torch.tensor([[3, 4, 5], [7, 0, 0], [1, 2, 0], [0, 0, 0]])
    options = BeamConfig(beam=4, n_best=4, max_length=14, stopping=stopping)
    results = [
        beam_search(searched, options=options, end=END, prompt=prompt, prompt_mask=prompt > 0, banned=(1,))
        for searched in (model, Uncached(model))
    ]
    assert_same(*results)
    assert len({tuple(h.tokens) for row in results[0] for h in row}) == 16
    for row, forced in zip(results[0], prompt.tolist(), strict=True):
        for h in row:
            output = [*h.tokens, END] if h.finished else h.tokens
            log_probs, _ = model.score(torch.tensor([[END, *output[:-1]]]), torch.tensor([output]), model.start(rows=1))
            assert h.token_log_probs == pytest.approx(log_probs[0].tolist(), abs=1e-9)
            assert h.tokens[: sum(map(bool, forced))] == [token for token in forced if token]


@pytest.mark.parametrize("name", TRANSLATORS)
def test_cached_translation_search_matches_uncached_search(name: str) -> None:
    model, source = translator(name), batch()
    looks = TRANSLATORS[name]["attention"] is not None
    options = BeamConfig(beam=4, n_best=3, coverage_penalty=0.3 if looks else 0.0, max_length=12)
    results = [
        beam_search(searched, options=options, end=END, source=source, attention=True)
        for searched in (model, Uncached(model))
    ]
    assert_same(*results)
    assert len({tuple(h.tokens) for row in results[0] for h in row}) > 4
    for index, row in enumerate(results[0]):
        for h in row:
            output = torch.tensor([[*h.tokens, END] if h.finished else h.tokens])
            taught = {
                "source": source["tokens"][index : index + 1],
                "source_mask": source["mask"][index : index + 1],
                "inputs": torch.cat([torch.tensor([[END]]), output[:, :-1]], dim=1),
                "targets": output,
                "target_mask": torch.ones_like(output, dtype=torch.bool),
            }
            assert h.token_log_probs == pytest.approx(model.target_log_probs(taught)[0].tolist(), abs=1e-9)
            if looks:
                width = int(source["mask"][index].sum())
                assert h.attention is not None
                torch.testing.assert_close(h.attention, model.attention(taught)[0, :, :width].float())
            else:
                assert h.attention is None


@pytest.mark.parametrize("name", TRANSLATORS)
def test_batched_search_matches_single_searches_and_beam_of_one_is_greedy(name: str) -> None:
    model, source = translator(name), batch()
    options = BeamConfig(beam=5, n_best=5)
    batched = beam_search(model, options=options, end=END, source=source)
    for row in range(4):
        width = int(source["mask"][row].sum())
        alone = {key: values[row : row + 1, :width] for key, values in source.items()}
        assert_same([batched[row]], beam_search(model, options=options, end=END, source=alone))
    steps = list(
        generate(
            model,
            torch.full((4, 1), END),
            options=SamplingConfig(temperature=0),
            max_tokens=9,
            end=END,
            source=source,
        )
    )
    greedy = beam_search(model, options=BeamConfig(beam=1, max_length=9), end=END, source=source)
    for row, (hypothesis,) in enumerate(greedy):
        tokens = [int(step.tokens[row]) for step in steps]
        assert hypothesis.tokens == (tokens[: tokens.index(END)] if END in tokens else tokens)


def test_missing_state_reordering_is_detected() -> None:
    """Negative control: a model that keeps a hidden state between calls gives different results."""

    class Stubborn:
        def __init__(self, model: Any) -> None:
            self.model = model
            self.kept: Any = None

        def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
            self.kept = None
            return self.model.start(source, rows)

        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            fits = self.kept is not None and len(self.kept[0]["h"]) == len(tokens)
            output = self.model.step(tokens, DecodeState(self.kept) if fits else state, mask)
            self.kept = output.state.hidden
            return output

    model = LANGUAGE["lstm"]()
    options = BeamConfig(beam=4, n_best=4, max_length=10)
    right, wrong = (
        beam_search(searched, options=options, end=END)[0] for searched in (Uncached(model), Stubborn(model))
    )
    assert [h.tokens for h in right] != [h.tokens for h in wrong]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", TRANSLATORS)
def test_gpu_search_matches_cpu_search(name: str) -> None:
    model, source = translator(name), batch()
    looks = TRANSLATORS[name]["attention"] is not None
    prompt = torch.tensor([[3, 4], [5, 0], [0, 0], [1, 2]])
    options = BeamConfig(beam=4, n_best=3, coverage_penalty=0.3 if looks else 0.0)
    results = [
        beam_search(
            model.to(device),
            options=options,
            end=END,
            source=to_device(source, device),
            prompt=prompt.to(device),
            prompt_mask=(prompt > 0).to(device),
            banned=(1,),
            attention=True,
        )
        for device in ("cpu", "cuda")
    ]
    assert_same(*results)
