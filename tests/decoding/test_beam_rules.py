"""The rules of beam search: stopping, ties, impossible tokens, and invalid settings."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.errors import DivergedError, UsageError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tokens import best_tokens
from seqloom.core.tree import Tree
from seqloom.decoding.beam import BeamConfig, beam_search

END = 0


def test_exact_stopping_uses_the_length_bound() -> None:
    """The search can end now with log ½ per token, or find a better score later. Only the length bound decides."""

    class Late:
        def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
            return DecodeState(torch.zeros(rows or 1, dtype=torch.long))

        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            steps.append(len(tokens))
            first, later = torch.tensor([0.6, 0.4, 0.0]), torch.tensor([0.001, 0.999, 0.0])
            probs = torch.where((state.hidden == 0)[:, None], first, later)
            return StepOutput(probs.double().log(), DecodeState(state.hidden + 1))

    steps: list[int] = []
    options = BeamConfig(beam=1, max_length=30)
    (usual,) = beam_search(Late(), options=options, end=END)[0]
    assert (usual.tokens, len(steps)) == ([], 1)
    steps.clear()
    (exact,) = beam_search(Late(), options=replace(options, stopping="exact"), end=END)[0]
    assert exact.tokens == [] and len(steps) == 30  # truncated hypotheses rank last, but could have ended
    steps.clear()
    beam_search(Late(), options=replace(options, stopping="exact", length_penalty=0.0), end=END)
    assert len(steps) == 1  # without a length penalty, scores only decrease
    steps.clear()
    beam_search(Late(), options=replace(options, stopping="exact", max_length=2, length_penalty=0.5), end=END)
    assert len(steps) == 1  # log 0.4 / √2 is still below log 0.6


def test_improbable_endings_do_not_stop_the_search() -> None:
    """At each of ten steps, END is the second-best token, but very improbable."""

    class Sure:
        def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
            return DecodeState(torch.zeros(rows or 1, dtype=torch.long))

        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            going, ending = torch.tensor([0.01, 0.985, 0.005]), torch.tensor([0.98, 0.01, 0.01])
            probs = torch.where((state.hidden < 10)[:, None], going, ending)
            return StepOutput(probs.double().log(), DecodeState(state.hidden + 1))

    for alpha, width in itertools.product((0.0, 1.0), (1, 2, 3, 5)):
        options = BeamConfig(beam=width, max_length=30, length_penalty=alpha)
        (best,) = beam_search(Sure(), options=options, end=END)[0]
        assert best.tokens == [1] * 10 and best.finished


def test_usual_stopping_compares_finished_and_unfinished_hypotheses() -> None:
    table = torch.tensor([0.3, 0.4, 0.2, 0.1]).log()

    class Same:
        def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
            return DecodeState(torch.zeros(rows or 1, dtype=torch.long))

        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            steps.append(len(tokens))
            return StepOutput(table.expand(len(tokens), -1), state)

    steps: list[int] = []
    hypotheses = beam_search(Same(), options=BeamConfig(beam=3, n_best=3, length_penalty=0.0, max_length=50), end=END)[
        0
    ]
    assert [h.tokens for h in hypotheses] == [[], [1], [1, 1]]
    assert steps == [1, 3, 3, 3]  # after three steps, the unfinished 0.4³ exceeds 0.4² · 0.3


def test_finished_hypotheses_precede_truncated_hypotheses() -> None:
    table = torch.tensor([0.01, 0.99]).log()

    class Long:
        def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
            return DecodeState(torch.zeros(rows or 1, dtype=torch.long))

        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            return StepOutput(table.expand(len(tokens), -1), state)

    hypotheses = beam_search(Long(), options=BeamConfig(beam=4, n_best=4, max_length=2), end=END)[0]
    assert [(h.tokens, h.finished) for h in hypotheses] == [([1], True), ([], True), ([1, 1], False)]
    assert hypotheses[2].score > hypotheses[0].score


# --- ties, impossible tokens, NaN -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(5, 2), (5, 3), (5, 64), (2, 700), (130, 2048), (130, 2111)]
)  # two of these shapes are divided into blocks
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 7),
    levels=st.sampled_from([2, 20, 10**6]),
    impossible=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_best_tokens_match_a_stable_sort(
    shape: tuple[int, int], seed: int, count: int, levels: int, impossible: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = -torch.randint(0, levels, shape, generator=generator).float()
    rows[torch.rand(shape, generator=generator) < impossible] = -math.inf
    rows[:, [0, -1]] = 0.0  # the first and the last token are among the best tokens
    values, ids = best_tokens(rows, count)
    assert values.shape == ids.shape == (shape[0], min(count, shape[1]))
    order = rows.argsort(dim=1, descending=True, stable=True)[:, :count]
    for row in range(0, shape[0], 13):
        expected = [token for token in order[row].tolist() if rows[row, token] > -math.inf]
        possible = values[row] > -math.inf
        assert ids[row][possible].tolist() == sorted(expected)
        assert torch.equal(values[row][possible], rows[row, ids[row]][possible])


def test_ties_prefer_the_lower_hypothesis_and_token() -> None:
    class Even:
        def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
            return DecodeState(torch.zeros(rows or 1, dtype=torch.long))

        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            return StepOutput(torch.full((len(tokens), 300), -math.log(300)), state)

    options = BeamConfig(beam=4, n_best=4, min_length=2, max_length=2)
    results = beam_search(Even(), options=options, end=END, rows=3, banned=(2,))
    assert [[h.tokens for h in hypotheses] for hypotheses in results] == [[[1, 1], [1, 3], [1, 4], [1, 5]]] * 3


class Fixed:
    """A model with constant probabilities, except that `last` follows `token`."""

    def __init__(self, probs: Sequence[float], token: int = -1, last: Sequence[float] = ()) -> None:
        self.probs, self.token, self.last = torch.tensor(probs).double(), token, torch.tensor(last or probs).double()

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.zeros(rows or 1, dtype=torch.long))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        return StepOutput(torch.where(tokens[:, -1:] == self.token, self.last, self.probs).log(), state)


def test_only_possible_hypotheses_are_returned() -> None:
    options = BeamConfig(beam=5, n_best=5, max_length=3)
    hypotheses = beam_search(Fixed([0.0, 1.0, 0.0], token=1, last=[1.0, 0.0, 0.0]), options=options, end=END)[0]
    assert [(h.tokens, h.finished, h.log_prob) for h in hypotheses] == [([1], True, 0.0)]


def test_source_without_possible_tokens_returns_its_prefix() -> None:
    model = Fixed([0.0, 1.0, 0.0], token=1, last=[1.0, 0.0, 0.0])  # the hypothesis must end after one token
    (hypothesis,) = beam_search(model, options=BeamConfig(min_length=2, max_length=5), end=END)[0]
    assert (hypothesis.tokens, hypothesis.finished) == ([1], False)
    (hypothesis,) = beam_search(model, options=BeamConfig(max_length=5), end=END, prompt=torch.tensor([[2, 1]]))[0]
    assert (hypothesis.tokens, hypothesis.finished, hypothesis.log_prob) == ([], False, 0.0)


def test_nan_probabilities_are_rejected() -> None:
    with pytest.raises(DivergedError, match="are NaN"):
        beam_search(Fixed([0.5, math.nan, 0.5]), options=BeamConfig(max_length=3), end=END)
    with pytest.raises(DivergedError, match="are NaN"):
        beam_search(Fixed([math.nan, 0.5, 0.5]), options=BeamConfig(max_length=3), end=END)
    impossible = Fixed([0.5, 0.5, 0.0], token=2, last=[math.nan] * 3)  # ignored, because it follows an impossible token
    assert beam_search(impossible, options=BeamConfig(beam=3, max_length=3), end=END)[0][0].finished


# --- invalid settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"beam": 0}, "beam must be at least 1"),
        ({"n_best": 6}, "n_best must be at most beam, 5; got 6"),
        ({"n_best": 0}, "n_best must be at least 1"),
        ({"length_penalty": -1.0}, "length_penalty must be at least 0"),
        ({"length_penalty": 300.0}, "length_penalty must be at most 10"),
        ({"coverage_penalty": math.nan}, "coverage_penalty must be"),
        ({"min_length": -1}, "min_length must be at least 0"),
        ({"min_length": 7, "max_length": 6}, "max_length must be at least min_length, 7; got 6"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"stopping": "late"}, "stopping must be usual or exact"),
    ],
    ids=str,
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BeamConfig(**wrong)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"options": BeamConfig()}, "needs max_length"),
        ({"prompt": torch.tensor([[1, END]])}, "must not contain END"),
        ({"prompt": torch.tensor([1, 2])}, r"must have shape \(2, tokens\)"),
        ({"prompt": torch.tensor([[1], [2]]), "rows": 3}, r"must have shape \(3, tokens\)"),
        ({"prompt": torch.tensor([[1, 2]]), "prompt_mask": torch.tensor([[True]])}, "shape of the prompt"),
        ({"prompt": torch.tensor([[1] * 9])}, "must be above its 9 tokens"),
        ({"options": BeamConfig(coverage_penalty=0.1, max_length=9)}, "needs a model with attention"),
    ],
    ids=str,
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        beam_search(Fixed([0.5, 0.25, 0.25]), **{"options": BeamConfig(max_length=9), "end": END, **arguments})
