"""Language model evaluation compared with manual sums, for models with and without memory."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import CausalLanguageModel, DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.evaluate.perplexity import Totals, metrics, score_texts, stream_log_probs

END = 0
NAMES = ["loss", "perplexity", "word_perplexity", "bits_per_character", "bits_per_byte"]


class Bigram:
    """A model with p(next | last) from a table (V, V)."""

    def __init__(self, vocabulary: int = 7) -> None:
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64).log_softmax(-1)
        self.predictions = 0

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState({"total": torch.zeros(rows or 1, dtype=torch.long)})

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        raise NotImplementedError

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        self.predictions += inputs.numel()
        return self.table[inputs, targets], state


class CumulativeModel(Bigram):
    """A model whose table row depends on the sum of all inputs, so that every previous token has an effect."""

    def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        totals = state.hidden["total"][:, None] + (inputs + 1).cumsum(1)
        return self.table[totals % len(self.table), targets], DecodeState({"total": totals[:, -1]})


def evaluate_stream(*arguments: Any, **options: Any) -> Totals:
    return Totals.of(stream_log_probs(*arguments, **options))


def reference_log_probs(model: Bigram, context: list[int], tokens: list[int]) -> list[float]:
    """Score one token at a time after reading `context`."""
    log_probs: list[float] = []
    sofar = list(context)
    for token in tokens:
        row = sum(t + 1 for t in sofar) % 7 if isinstance(model, CumulativeModel) else sofar[-1]
        log_probs.append(model.table[row, token].item())
        sofar.append(token)
    return log_probs


def pieces(tokens: list[int], rows: int) -> list[int]:
    """Return the starts of the rows. The first rows are longer by one token if the stream is not divisible."""
    small, longer = divmod(len(tokens), rows)
    return [row * small + min(row, longer) for row in range(rows)] + [len(tokens)]


streams = st.lists(st.integers(0, 6), min_size=1, max_size=40)


@given(streams, st.integers(1, 50), st.integers(1, 50))
@settings(deadline=None)
def test_every_token_is_predicted_once_by_a_model_without_memory(tokens: list[int], rows: int, chunk: int) -> None:
    model = Bigram()
    actual = stream_log_probs(model, torch.tensor(tokens), end=END, rows=rows, chunk=chunk)
    assert actual.tolist() == reference_log_probs(model, [END], tokens)
    assert len(tokens) <= model.predictions < len(tokens) + min(rows, len(tokens))
    totals = evaluate_stream(model, torch.tensor(tokens), end=END, rows=rows, chunk=chunk)
    assert totals.tokens == len(tokens)
    assert totals.nll == pytest.approx(-math.fsum(reference_log_probs(model, [END], tokens)), abs=1e-10)


@given(streams, st.integers(1, 9), st.integers(1, 50))
@settings(deadline=None)
def test_rows_start_with_initial_state_and_chunks_carry_it(tokens: list[int], rows: int, chunk: int) -> None:
    model = CumulativeModel()
    bounds = pieces(tokens, min(rows, len(tokens)))
    expected: list[float] = []
    for begin, stop in itertools.pairwise(bounds):
        expected += reference_log_probs(model, [tokens[begin - 1] if begin else END], tokens[begin:stop])
    assert stream_log_probs(model, torch.tensor(tokens), end=END, rows=rows, chunk=chunk).tolist() == expected


def test_number_of_rows_affects_a_model_with_memory() -> None:
    stream = torch.arange(40) % 7
    assert evaluate_stream(CumulativeModel(), stream, end=END) != evaluate_stream(
        CumulativeModel(), stream, end=END, rows=2
    )


@given(st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=9), st.integers(1, 5), st.integers(1, 12))
@settings(deadline=None)
def test_batched_texts_give_the_same_results_as_single_texts(texts: list[list[int]], rows: int, chunk: int) -> None:
    for model in (Bigram(), CumulativeModel()):
        batched = score_texts(model, texts, end=END, rows=rows, chunk=chunk)
        assert [scores.tolist() for scores in batched] == [
            reference_log_probs(model, [END], [*text, END]) for text in texts
        ]


def test_score_of_an_empty_text_is_that_of_the_end_token() -> None:
    model = Bigram()
    (scores,) = score_texts(model, [[]], end=END)
    assert scores.tolist() == [model.table[END, END].item()]
    assert score_texts(model, [], end=END) == []


def test_texts_of_similar_length_are_batched() -> None:
    model = Bigram()
    score_texts(model, [[1] * 50, [], [1] * 50, []], end=END, rows=2)
    assert model.predictions == 2 * 51 + 2 * 1


def test_float32_scores_are_summed_in_float64() -> None:
    class Flat(Bigram):
        def score(self, inputs: Tensor, targets: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
            return torch.full(inputs.shape, -0.1), state

    totals = evaluate_stream(Flat(), torch.zeros(1_000_003, dtype=torch.long), end=END, rows=10, chunk=10_000)
    assert totals.nll == pytest.approx(1_000_003 * float(torch.tensor(0.1)), rel=1e-12)


def test_metrics_match_manual_values() -> None:
    # 8 tokens of probability 1/4 each: 16 bits.
    actual = metrics(Totals(nll=8 * math.log(4), tokens=8), words=4, characters=10, size=16)
    assert list(actual) == NAMES
    assert actual == pytest.approx(
        {"loss": math.log(4), "perplexity": 4, "word_perplexity": 16, "bits_per_character": 1.6, "bits_per_byte": 1}
    )


def test_overflowing_metrics_are_infinite() -> None:
    counts = {"words": 1, "characters": 2, "size": 2}
    actual = metrics(Totals(nll=1e6, tokens=2), **counts)
    assert actual["perplexity"] == math.inf
    assert actual["word_perplexity"] == math.inf
    assert actual["bits_per_byte"] == pytest.approx(1e6 / math.log(2) / 2)
    impossible = metrics(Totals(nll=math.inf, tokens=2), **counts)
    assert set(impossible.values()) == {math.inf}
    assert all(math.isnan(value) for value in metrics(Totals(nll=math.nan, tokens=2), **counts).values())


def test_empty_text_is_rejected() -> None:
    empty = evaluate_stream(Bigram(), torch.empty(0, dtype=torch.long), end=END)
    assert empty == Totals(nll=0, tokens=0)
    with pytest.raises(DataError, match="no documents to evaluate"):
        metrics(empty, words=0, characters=0, size=0)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"chunk": 0}, {"stream": torch.zeros(2, 2, dtype=torch.long)}])
def test_invalid_arguments_are_rejected(wrong: dict[str, Any]) -> None:
    stream: Any = torch.zeros(3, dtype=torch.long)
    with pytest.raises(UsageError):
        evaluate_stream(Bigram(), **({"stream": stream, "end": END} | wrong))


def test_scores_have_no_autograd_graph() -> None:
    model = Bigram()
    model.table.requires_grad_()
    assert not stream_log_probs(model, torch.ones(5, dtype=torch.long), end=END).requires_grad
    assert isinstance(model, CausalLanguageModel)
