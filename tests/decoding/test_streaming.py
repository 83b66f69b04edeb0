"""Streamed text compared with the complete text that is cut afterwards."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.decoding.generate import Steps, StopCutter, generate, text_stream, text_streams
from seqloom.decoding.processors import SamplingConfig

END = 0
pieces_of_text = st.lists(st.text("ab.", max_size=3), max_size=8)
stop_strings = st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3)


def naive_cut(text: str, stop: list[str]) -> str:
    """Extend the text by one character at a time until it ends with a stop string. Remove the longest such string."""
    for size in range(len(text) + 1):
        ending = [s for s in stop if text[:size].endswith(s)]
        if ending:
            return text[: size - max(map(len, ending))]
    return text


class Pieces:
    """A decoder whose token i is the i-th piece. It is delayed by one token, as with an incomplete character."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces, self.waiting = pieces, ""

    def push(self, token: int) -> str:
        ready, self.waiting = self.waiting, self.pieces[token]
        return ready

    def flush(self) -> str:
        ready, self.waiting = self.waiting, ""
        return ready


class CountingModel:
    """A model that predicts 1, 2, 3 … and counts its steps."""

    def __init__(self, last: int) -> None:
        self.last, self.asked = last, 0

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(None)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        self.asked += len(tokens)
        following = (tokens[:, -1] + 1) % (self.last + 1)
        return StepOutput(torch.nn.functional.one_hot(following, self.last + 1).float().log(), state)


def generate_pieces(pieces: list[str], max_tokens: int = 100) -> tuple[CountingModel, Steps]:
    model = CountingModel(len(pieces))
    prompt = torch.zeros(1, 1, dtype=torch.long)
    options = SamplingConfig(temperature=0)
    return model, generate(model, prompt, options=options, max_tokens=max_tokens, end=END)


@given(pieces_of_text, stop_strings)
@example(["a", "b", "a", "b", "."], ["ab."])
@example(["ab", "b"], ["abb", "b"])
@example(["abb"], ["abb", "b"])
@example(["aab"], ["aab", "ab", "b"])
def test_text_is_cut_at_the_first_stop_string(pieces: list[str], stop: list[str]) -> None:
    cutter = StopCutter(stop)
    streamed = ""
    for size, piece in enumerate(pieces, 1):
        streamed += cutter.push(piece)
        sofar = "".join(pieces[:size])
        assert naive_cut("".join(pieces), stop).startswith(streamed), "text was shown that had to be taken back"
        held = len(naive_cut(sofar, stop)) - len(streamed)
        assert 0 <= held < max(map(len, stop), default=1), "more was held back than could begin a stop string"
    assert streamed + cutter.flush() == naive_cut("".join(pieces), stop)
    assert cutter.push("more") == ""


@given(pieces_of_text.filter(any), stop_strings)
def test_streamed_text_matches_complete_text(pieces: list[str], stop: list[str]) -> None:
    _, steps = generate_pieces(pieces)
    streamed = list(text_stream(steps, Pieces(["", *pieces]), stop))
    assert "" not in streamed
    assert "".join(streamed) == naive_cut("".join(pieces), stop)


def test_stop_string_across_tokens_ends_generation() -> None:
    pieces = ["one ", "two", "\n", "\n", "User: ", "three", "four"]
    model, steps = generate_pieces(pieces)
    assert list(text_stream(steps, Pieces(["", *pieces]), ["\n\nUser:"])) == ["one ", "two"]
    assert model.asked == 6  # the decoder is one token late; no further tokens are computed
    assert next(steps, None) is None


def test_held_back_text_is_returned_at_the_end() -> None:
    pieces = ["x", "\n", "\n", "never"]
    _, steps = generate_pieces(pieces, max_tokens=3)
    assert list(text_stream(steps, Pieces(["", *pieces]), ["\n\n\n"])) == ["x", "\n\n"]


def test_rows_stop_independently() -> None:
    pieces = ["", "a", "b", "c", "d", "e"]
    model = CountingModel(5)
    options = SamplingConfig(temperature=0)
    prompt = torch.tensor([[0], [2], [4]])  # "abcde", "cde", "e"
    steps = generate(model, prompt, options=options, max_tokens=9, end=END)
    arrived = list(text_streams(steps, [Pieces(pieces) for _ in prompt], ["bc", "d"]))
    assert ["".join(row) for row in zip(*arrived, strict=True)] == ["a", "c", "e"]
    assert model.asked == 3 + 3 + 2 + 1  # row 2 ends after two steps at END, row 1 at "d", and row 0 at "bc"


def test_closing_the_stream_closes_the_generator() -> None:
    _, steps = generate_pieces(["a", "b", "c"])
    stream = text_stream(steps, Pieces(["", "a", "b", "c"]))
    assert next(stream) == "a"
    stream.close()
    assert next(steps, None) is None


@pytest.mark.parametrize("stop", [[""], ["a", ""], "ab"])
def test_invalid_stop_strings_are_rejected_at_the_call(stop: list[str]) -> None:
    model, steps = generate_pieces(["a"])
    with pytest.raises(UsageError, match="Stop strings"):
        text_stream(steps, Pieces([""]), stop)
    assert model.asked == 0
