"""Beam search compared with enumeration on small models."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.decoding import beam as module
from seqloom.decoding.beam import BeamConfig, Hypothesis, beam_search
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig

END = 0
SUM = BeamConfig(beam=2, length_penalty=0.0, max_length=8)


class Tables:
    """A model with p(next | source, prefix) from a random table, whose state is a hash of the prefix.

    It attends to a random mixture of the real positions of the source. `step` destroys the state that it receives.
    """

    SIZE = 997

    def __init__(self, vocabulary: int, seed: int = 0, *, levels: int | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(self.SIZE, vocabulary, generator=generator, dtype=torch.float64)
        if levels is not None:  # few different values, so that many tokens are equally probable
            logits = (logits * levels).round() / levels
        self.vocabulary, self.table = vocabulary, logits.log_softmax(-1)
        self.places = torch.randn(self.SIZE, 12, generator=generator, dtype=torch.float64)
        self.rows: list[tuple[int, int]] = []

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        rows = (rows or 1) if source is None else len(source["tokens"])
        return DecodeState({"h": torch.ones(rows, dtype=torch.long)}, source)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        h, source = state.hidden["h"].clone(), state.memory
        for t in range(tokens.shape[1]):
            after = (h * 31 + tokens[:, t] * 7 + 3) % self.SIZE
            h = after if mask is None else torch.where(mask[:, t], after, h)
        state.hidden["h"].fill_(-1)
        if source is None:
            return StepOutput(self.table[h], DecodeState({"h": h}))
        self.rows.append((len(tokens), len(source["tokens"])))
        held = len(h) // len(source["tokens"])
        ids, real = (source[key].repeat_interleave(held, 0) for key in ("tokens", "mask"))
        index = (h + (ids * real).sum(1) * 13) % self.SIZE
        weights = self.places[index][:, : real.shape[1]].masked_fill(~real, -math.inf).softmax(-1)
        return StepOutput(self.table[index], DecodeState({"h": h}, source), weights)


Found = tuple[bool, float, tuple[int, ...]]  # finished, score, tokens


def enumerate_hypotheses(
    model: Tables,
    options: BeamConfig,
    *,
    source: Tree = None,
    prefix: tuple[int, ...] = (),
    banned: Sequence[int] = (),
    maximum: int | None = None,
) -> list[Found]:
    """Enumerate all hypotheses, best first. Each hypothesis is scored from its beginning."""
    maximum = options.max_length if maximum is None else maximum
    assert maximum is not None
    hypotheses = []
    for size in range(maximum + 1):
        for tokens in itertools.product(range(1, model.vocabulary), repeat=size):
            finished = size < maximum
            if tokens[: len(prefix)] != prefix or set(tokens[len(prefix) :]) & set(banned):
                continue
            if size >= options.min_length or not finished:
                hypotheses.append((finished, score_of(model, tokens, finished, options, source), tokens))
    return sorted(hypotheses, key=lambda scored: (not scored[0], -scored[1]))


def score_of(model: Tables, tokens: tuple[int, ...], finished: bool, options: BeamConfig, source: Tree) -> float:
    output = [*tokens, END] if finished else [*tokens]
    total, coverage = 0.0, torch.zeros(())
    for t, token in enumerate(output):
        read = torch.tensor([[END, *output[:t]]])
        step = model.step(read, model.start(rows=1) if source is None else model.start(source))
        total += step.log_probs[0, token].item()
        coverage = coverage + (0 if step.attention is None else step.attention[0])
    score = total / len(output) ** options.length_penalty
    if options.coverage_penalty:
        score += options.coverage_penalty * coverage[source["mask"][0]].clamp(max=1).log().sum().item()
    return score


def sources(*rows: Sequence[int]) -> dict[str, Tensor]:
    max_length = max(map(len, rows))
    return {
        "tokens": torch.tensor([[*row, *[END] * (max_length - len(row))] for row in rows]),
        "mask": torch.tensor([[True] * len(row) + [False] * (max_length - len(row)) for row in rows]),
    }


def one_source(source: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    width = int(source["mask"][row].sum())
    return {key: values[row : row + 1, :width] for key, values in source.items()}


def assert_same(actual: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
    assert [(h.tokens, h.finished) for h in actual] == [(h.tokens, h.finished) for h in expected]
    for a, b in zip(actual, expected, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-9)
        assert a.token_log_probs == pytest.approx(b.token_log_probs, abs=1e-9)
        assert (a.attention is None) == (b.attention is None)
        if a.attention is not None and b.attention is not None:
            torch.testing.assert_close(a.attention, b.attention)


# --- a search tree with known probabilities -------------------------------------------------------------------------

WORDS = ["</s>", "he", "I", "hit", "struck", "was", "got", "a", "me", "with", "on", "pie", "one", "tart"]
TREE: dict[str, dict[str, float]] = {  # the remaining probability belongs to no word
    "": {"he": 0.5, "I": 0.4},
    "he": {"hit": 0.4, "struck": 0.2},
    "I": {"was": 0.45, "got": 0.25},
    "he hit": {"a": 0.4, "me": 0.35},
    "I was": {"hit": 0.3, "struck": 0.25},
    "he hit a": {"pie": 0.3, "one": 0.2},
    "he hit me": {"with": 0.6, "on": 0.3},
    "he hit a pie": {"</s>": 0.3, "with": 0.2},
    "he hit me with": {"a": 0.8, "one": 0.1},
    "he hit me on": {"a": 0.3, "one": 0.2},
    "he hit me with a": {"pie": 0.7, "tart": 0.25},
    "he hit me with a pie": {"</s>": 0.9},
    "he hit me with a tart": {"</s>": 0.9},
}


class TreeModel:
    """The tree as a model whose state consists of the words so far."""

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.zeros(rows or 1, 0, dtype=torch.long))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        text_of = torch.cat([state.hidden, tokens], dim=1)
        rows = [TREE.get(" ".join(WORDS[word] for word in row if word != END), {}) for row in text_of.tolist()]
        return StepOutput(
            torch.tensor([[row.get(word, 0.0) for word in WORDS] for row in rows]).log(), DecodeState(text_of)
        )


def text_of(hypothesis: Hypothesis) -> str:
    return " ".join(WORDS[token] for token in hypothesis.tokens)


def test_beam_of_two_beats_greedy_search() -> None:
    """With k = 2, "he hit a" has a higher score than "he hit me" for only one step."""
    (greedy,) = beam_search(TreeModel(), options=replace(SUM, beam=1), end=END)[0]
    assert text_of(greedy) == "he hit a pie"
    assert greedy.log_prob == pytest.approx(math.log(0.5 * 0.4 * 0.4 * 0.3 * 0.3))
    best, second = beam_search(TreeModel(), options=replace(SUM, n_best=2), end=END)[0]
    assert text_of(best) == "he hit me with a pie" and text_of(second) == "he hit me with a tart"
    assert best.log_prob == pytest.approx(math.log(0.5 * 0.4 * 0.35 * 0.6 * 0.8 * 0.7 * 0.9))
    assert best.score == best.log_prob > greedy.log_prob
    assert best.token_log_probs == pytest.approx([math.log(p) for p in (0.5, 0.4, 0.35, 0.6, 0.8, 0.7, 0.9)])
    assert best.finished and best.attention is None


def test_beam_contains_the_documented_hypotheses_at_each_step() -> None:
    """The beam after each step equals the example in docs/explanations/decoding.md."""
    beams: list[list[str]] = []

    class Watched(TreeModel):
        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            prefixes = torch.cat([state.hidden, tokens], dim=1)[:, 1:]
            beams.append([" ".join(WORDS[word] for word in row) for row in prefixes.tolist()])
            return super().step(tokens, state, mask)

    beam_search(Watched(), options=SUM, end=END)
    assert beams == [
        [""],
        ["he", "I"],
        ["he hit", "I was"],
        ["he hit a", "he hit me"],
        ["he hit me with", "he hit a pie"],
        ["he hit me with a", "he hit a pie with"],  # "he hit a pie" is finished
        ["he hit me with a pie", "he hit me with a tart"],
    ]


# --- exhaustive beams -----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(2, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    minimum=st.integers(0, 4),
    prefix=st.sampled_from([(), (1,), (1, 1), (1, 1, 1)]),
    stopping=st.sampled_from(["usual", "exact"]),
    banned=st.sampled_from([(), (1,)]),
)
def test_exhaustive_beam_matches_enumeration(
    seed: int,
    vocabulary: int,
    alpha: float,
    minimum: int,
    prefix: tuple[int, ...],
    stopping: Any,
    banned: tuple[int, ...],
) -> None:
    model = Tables(vocabulary, seed)
    options = BeamConfig(
        beam=150, n_best=150, length_penalty=alpha, min_length=minimum, max_length=4, stopping=stopping
    )
    expected = enumerate_hypotheses(model, options, prefix=prefix, banned=banned)
    assume(expected)
    prompt = torch.tensor([prefix], dtype=torch.long)
    hypotheses = beam_search(model, options=options, end=END, prompt=prompt, banned=banned)[0]
    assert [(h.finished, tuple(h.tokens)) for h in hypotheses] == [(done, tokens) for done, _, tokens in expected]
    assert [h.score for h in hypotheses] == pytest.approx([score for _, score, _ in expected])
    for h in hypotheses:
        assert h.log_prob == pytest.approx(sum(h.token_log_probs))
        assert len(h.token_log_probs) == len(h.tokens) + h.finished
        assert h.score == pytest.approx(h.log_prob / len(h.token_log_probs) ** alpha)


@pytest.mark.parametrize("stopping", ["usual", "exact"])
@pytest.mark.parametrize("beta", [0.0, 0.2, 1.0])
def test_exhaustive_beam_with_coverage_matches_enumeration(beta: float, stopping: Any) -> None:
    model = Tables(3, seed=2)
    batch = sources([1, 2, 2, 1, 0], [2, 0], [1, 1, 1, 0])
    options = BeamConfig(beam=100, n_best=3, coverage_penalty=beta, length_penalty=0.7, max_length=4, stopping=stopping)
    results = beam_search(model, options=options, end=END, source=batch, attention=True)
    for row, hypotheses in enumerate(results):
        alone = one_source(batch, row)
        expected = enumerate_hypotheses(model, options, source=alone)[:3]
        assert [(h.finished, tuple(h.tokens)) for h in hypotheses] == [(done, tokens) for done, _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for _, score, _ in expected])
        for h in hypotheses:
            step_attention = [
                model.step(torch.tensor([[END, *h.tokens[:t]]]), model.start(alone)).attention
                for t in range(len(h.token_log_probs))
            ]
            assert h.attention is not None
            torch.testing.assert_close(h.attention, torch.cat(step_attention).float())  # type: ignore[arg-type]


def test_coverage_changes_the_order() -> None:
    """Negative control for the test above: with β, the order changes."""
    model, batch = Tables(3, seed=2), sources([1, 2, 2, 1, 0])
    plain, covered = (
        beam_search(model, options=BeamConfig(beam=40, coverage_penalty=beta, max_length=4), end=END, source=batch)[0]
        for beta in (0.0, 5.0)
    )
    assert plain[0].tokens != covered[0].tokens


# --- greedy search --------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), vocabulary=st.integers(2, 30), minimum=st.integers(0, 6), length=st.integers(0, 3))
def test_search_with_a_beam_of_one_matches_greedy_search(seed: int, vocabulary: int, minimum: int, length: int) -> None:
    model = Tables(vocabulary, seed, levels=2)  # both searches break ties in the same way
    prompt = torch.randint(1, vocabulary, (4, length), generator=torch.Generator().manual_seed(seed))
    banned = (1,) if vocabulary > 2 else ()
    read = torch.cat([torch.zeros(4, 1, dtype=torch.long), prompt], dim=1)
    sampling = SamplingConfig(temperature=0, min_tokens=minimum, banned=banned)
    steps = list(generate(model, read, options=sampling, max_tokens=7, end=END))
    options = BeamConfig(beam=1, min_length=minimum + length, max_length=7 + length)
    for row, (hypothesis,) in enumerate(beam_search(model, options=options, end=END, prompt=prompt, banned=banned)):
        tokens = [int(step.tokens[row]) for step in steps]
        log_probs = [float(step.log_probs[row]) for step in steps]
        ends = tokens.index(END) + 1 if END in tokens else len(tokens)
        assert hypothesis.tokens[length:] == tokens[: ends - hypothesis.finished]
        assert hypothesis.finished == (END in tokens)
        assert hypothesis.token_log_probs[length:] == log_probs[:ends]


# --- stopping -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 6), alpha=st.sampled_from([0.0, 1.0]), count=st.integers(1, 6))
def test_exact_stopping_is_never_worse_than_usual_stopping(seed: int, width: int, alpha: float, count: int) -> None:
    model, batch = Tables(9, seed), sources([1, 2, 3, 0], [5, 0])
    options = BeamConfig(beam=width, n_best=min(count, width), length_penalty=alpha, max_length=12)
    usual, exact = (
        beam_search(model, options=replace(options, stopping=rule), end=END, source=batch)
        for rule in ("usual", "exact")
    )
    for usual_row, exact_row in zip(usual, exact, strict=True):
        for a, b in zip(usual_row, exact_row, strict=True):
            assert (b.finished, b.score) >= (a.finished, a.score)


# --- lengths --------------------------------------------------------------------------------------------------------


def test_default_max_length_depends_on_the_source() -> None:
    class Endless(Tables):
        def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
            output = super().step(tokens, state, mask)
            return replace(output, log_probs=output.log_probs.index_fill(1, torch.tensor([END]), -math.inf))

    batch = sources([1, 2, 3, 4, 0], [1, 0])
    hypotheses = beam_search(Endless(6), options=BeamConfig(beam=3), end=END, source=batch)
    assert [len(hypothesis.tokens) for (hypothesis,) in hypotheses] == [30, 24]
    assert not any(hypothesis.finished for (hypothesis,) in hypotheses)
    prompt = torch.tensor([[1, 2, 3], [4, 0, 0]])
    hypotheses = beam_search(
        Endless(6), options=BeamConfig(), end=END, source=batch, prompt=prompt, prompt_mask=prompt > 0
    )
    assert [len(hypothesis.tokens) for (hypothesis,) in hypotheses] == [
        33,
        25,
    ]  # the prefix is not counted


# --- batches --------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(data=st.data(), width=st.integers(1, 5), stopping=st.sampled_from(["usual", "exact"]))
def test_single_source_gives_the_same_result_as_in_a_batch(data: st.DataObject, width: int, stopping: Any) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=6))
    model, batch = Tables(7, data.draw(st.integers(0, 10**6)), levels=3), sources(*rows)
    lengths = [data.draw(st.integers(0, 3)) for _ in rows]
    prompt = torch.tensor([[(i + t) % 6 + 1 for t in range(3)] for i in range(len(rows))])
    mask = torch.tensor([[t < length for t in range(3)] for length in lengths])
    options = BeamConfig(beam=width, n_best=width, coverage_penalty=0.1, max_length=8, stopping=stopping)
    batched = beam_search(
        model, options=options, end=END, source=batch, prompt=prompt, prompt_mask=mask, banned=(3,), attention=True
    )
    for row, row_hypotheses in enumerate(batched):
        alone = beam_search(
            model,
            options=options,
            end=END,
            source=one_source(batch, row),
            prompt=prompt[row : row + 1, : lengths[row]],
            banned=(3,),
            attention=True,
        )
        assert_same(row_hypotheses, alone[0])
        assert all(h.tokens[: lengths[row]] == prompt[row, : lengths[row]].tolist() for h in row_hypotheses)


def test_finished_sources_leave_without_copying_memory() -> None:
    model, batch = Tables(4, seed=5), sources(*([n, 0] for n in range(1, 21)))
    beam_search(model, options=BeamConfig(beam=3), end=END, source=batch)
    assert model.rows[0] == (20, 20)
    assert all(rows == 3 * held for rows, held in model.rows[1:])
    held = [held for _, held in model.rows]
    assert held == sorted(held, reverse=True) and held[-1] < 20


@pytest.mark.parametrize(
    "broken",
    [
        lambda rows: torch.zeros_like(rows) + torch.arange(len(rows)).unsqueeze(1) * rows.shape[1],
        lambda rows: rows.flip(1),
    ],
    ids=["not reordered", "reordered wrongly"],
)
def test_broken_reordering_is_detected(monkeypatch: pytest.MonkeyPatch, broken: Callable[[Tensor], Tensor]) -> None:
    model, options = Tables(4, seed=1), BeamConfig(beam=150, n_best=20, max_length=4)
    expected = [tokens for _, _, tokens in enumerate_hypotheses(model, options)[:20]]
    assert [tuple(h.tokens) for h in beam_search(model, options=options, end=END)[0]] == expected
    right = module.parent_rows
    monkeypatch.setattr(module, "parent_rows", lambda node, slot: broken(right(node, slot)) % node.numel())
    assert [tuple(h.tokens) for h in beam_search(model, options=options, end=END)[0]] != expected


def test_no_sources_give_no_hypotheses() -> None:
    empty = {"tokens": torch.empty(0, 3, dtype=torch.long), "mask": torch.empty(0, 3, dtype=torch.bool)}
    assert beam_search(Tables(4), options=BeamConfig(), end=END, source=empty) == []
    assert beam_search(Tables(4), options=BeamConfig(max_length=3), end=END, rows=0) == []
