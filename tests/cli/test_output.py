"""Tests of `print_predictions`, which all commands that predict lines use."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from seqloom.cli._output import print_predictions
from seqloom.predict.base import Prediction, Predictor

LONG = "only the beginning of {lines} was read"


@dataclass(frozen=True)
class Reply(Prediction):
    """A prediction with two kinds of problems."""

    text: str
    cut: bool = False

    def to_line(self) -> str:
        return self.text

    def to_json(self) -> dict[str, object]:
        return {"text": self.text, "unknown": list(self.unknown), "cut": self.cut}


class Model(Predictor[Reply]):
    notes: ClassVar = {LONG: lambda reply: reply.cut}

    reads_characters = False

    def __init__(self, reads_characters: bool = False) -> None:
        self.reads_characters = reads_characters


REPLIES = [Reply("a"), Reply("b", cut=True), Reply("c", unknown=("x", "y"), cut=True), Reply("d", unknown=("z",))]


def test_each_problem_is_noted_once_with_its_count_and_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_predictions(Model(), REPLIES, as_json=False)
    shown = capsys.readouterr()
    assert shown.out == "a\nb\nc\nd\n"
    assert shown.err == (
        "note: only the beginning of 2 lines was read; the first is line 2\n"
        "note: the vocabulary lacks parts of 2 lines; the first is line 3: 'x'\n"
    )


def test_unknown_parts_are_not_noted_for_models_that_read_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_predictions(Model(reads_characters=True), REPLIES, as_json=True)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2] == '{"text": "c", "unknown": ["x", "y"], "cut": true}'
    assert shown.err == "note: only the beginning of 2 lines was read; the first is line 2\n"


def test_custom_function_formats_the_output_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_predictions(Model(reads_characters=True), REPLIES[:2], False, lambda reply: reply.text.upper())
    assert capsys.readouterr().out == "A\nB\n"


def test_prediction_is_printed_before_the_next_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []

    def replies() -> Iterator[Reply]:
        for reply in REPLIES:
            yield reply
            printed.append(capsys.readouterr().out)

    print_predictions(Model(), replies(), as_json=False)
    assert printed == ["a\n", "b\n", "c\n", "d\n"]
