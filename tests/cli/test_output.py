"""The loop that prints answers and notes problems, which all commands that answer lines use."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pytest

from seqloom.cli._output import print_answers, printer

LONG = "only the beginning of {lines} was read"


@dataclass(frozen=True)
class Reply:
    """An answer with two kinds of problems."""

    text: str
    unknown: tuple[str, ...] = ()
    cut: bool = False


REPLIES = [Reply("a"), Reply("b", cut=True), Reply("c", ("x", "y"), cut=True), Reply("d", ("z",))]


def test_each_problem_is_noted_once_with_its_count_and_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_answers(REPLIES, printer(False, asdict, lambda reply: reply.text), {LONG: lambda reply: reply.cut})
    shown = capsys.readouterr()
    assert shown.out == "a\nb\nc\nd\n"
    assert shown.err == (
        "note: only the beginning of 2 lines was read; the first is line 2\n"
        "note: the vocabulary lacks parts of 2 lines; the first is line 3: 'x'\n"
    )


def test_unknown_parts_are_not_noted_for_models_that_read_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_answers(REPLIES, printer(True, asdict, lambda reply: reply.text), {}, note_unknown=False)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2] == '{"text": "c", "unknown": ["x", "y"], "cut": true}'
    assert shown.err == ""


def test_an_answer_is_printed_before_the_next_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []

    def replies() -> Iterator[Reply]:
        for reply in REPLIES:
            yield reply
            printed.append(capsys.readouterr().out)

    print_answers(replies(), printer(False, asdict, lambda reply: reply.text), {})
    assert printed == ["a\n", "b\n", "c\n", "d\n"]
