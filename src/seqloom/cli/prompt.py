"""Ask a language model by example, without training it."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._input import open_lines, parse_words
from seqloom.cli._options import BATCH_SIZE, Device, JsonLines, Texts, Window, batch_option, top_option
from seqloom.cli._output import print_predictions
from seqloom.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from seqloom.predict.language_model import PromptAnswer

_ESCAPES = {"\\n": "\n", "\\t": "\t"}  # as one types them on a command line


def prompt(
    run: Annotated[Path, typer.Argument(help="A run directory of a language model.")],
    texts: Texts = None,
    shots: Annotated[
        Path | None, typer.Option(help="Solved examples, text and label: a .tsv, .csv or .jsonl file.")
    ] = None,
    first: Annotated[int | None, typer.Option(min=0, help="Only so many of the shots. [default: all]")] = None,
    choices: Annotated[
        str | None, typer.Option(help="Labels to choose from, commas between. [default: those of the shots]")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="How an example is written. [default: the run's own, else '{text} = {label}']")
    ] = None,
    separator: Annotated[str, typer.Option(help="What stands between examples.")] = "\\n",
    by: Annotated[Literal["mean", "sum"], typer.Option(help="Compare log p per token, or the sum.")] = "mean",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Take off what the model says of a blank text.")
    ] = False,
    top: Annotated[int, top_option("Choices named for each text")] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Lines have their label after a tab: count the right answers.")
    ] = False,
    generate: Annotated[bool, typer.Option("--generate", help="Write the label instead of choosing it.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="With --generate: most tokens of an answer.")] = 50,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Rows read together.")] = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Ask a language model by example: `seqloom prompt runs/X --shots examples.tsv --choices yes,no < lines.txt`."""
    if generate and (choices is not None or calibrate or by != "mean" or top != 1):
        raise UsageError("--generate writes freely: leave out --choices, --by, --calibrate and --top.")
    if first is not None and shots is None:
        raise UsageError("--first N takes the first of the --shots; give these too.")
    from seqloom.data.prompts import read_shots
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load

    examples = [] if shots is None else read_shots(shots)[:first]
    model = load(run, device, LanguageModelPredictor)
    lines, size = open_lines(texts, batch, window)
    given: dict[str, Any] = {"shots": examples, "separator": _typed(separator)}
    given["template"] = None if template is None else _typed(template)
    checker = _Checker() if check else None
    lines = lines if checker is None else checker.texts(lines)
    found: Iterator[PromptAnswer]
    if generate:
        found = model.complete(lines, max_tokens=max_tokens, window=size if window else 1, **given)
    else:
        named = () if choices is None else parse_words("--choices", choices, "positive,negative")
        given |= {"by": by, "calibrate": calibrate, "top": top}
        found = model.choose(lines, named, batch_size=batch, window=size, **given)
    print_predictions(model, found if checker is None else checker.answers(found), as_json)
    if checker is not None:
        typer.echo(checker.summary(), err=True)


def _typed(text: str) -> str:
    for typed, meant in _ESCAPES.items():
        text = text.replace(typed, meant)
    return text


class _Checker:
    """Takes the label off each line, and counts the answers that equal it."""

    def __init__(self) -> None:
        self._labels: deque[str] = deque()  # of lines that were read and not yet answered
        self._right = self._asked = 0

    def texts(self, lines: Iterable[str]) -> Iterator[str]:
        for number, line in enumerate(lines, start=1):
            text, tab, label = line.rpartition("\t")
            if line.strip() and not (tab and text.strip() and label.strip()):
                raise DataError(f"With --check a line is a text, a tab and its label; line {number:,} is {line!r}.")
            self._labels.append(label.strip())
            yield text

    def answers(self, answers: Iterable["PromptAnswer"]) -> Iterator["PromptAnswer"]:
        for answer in answers:
            expected = self._labels.popleft()
            if expected:
                self._asked += 1
                self._right += answer.label == expected
            yield replace(answer, expected=expected)

    def summary(self) -> str:
        share = f", {self._right / self._asked:.2%}" if self._asked else ""
        return f"right: {self._right:,} of {self._asked:,}{share}"
