"""Answer questions about a text, with words of the text."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import arguments
from seqloom.cli._json import print_json
from seqloom.cli._lines import Notes, one_line, open_lines
from seqloom.cli._options import BATCH_SIZE, Device, Run, batch_option, json_option, top_option, window_option

if TYPE_CHECKING:
    from seqloom.api import Answered, Answerer


def answer(
    run: Run,
    context: Annotated[Path, typer.Option(help="The text the answers stand in: a UTF-8 file, which may be .gz.")],
    question: Annotated[
        list[str] | None, typer.Option(help="A question; may be given more than once. Without any, lines of the input.")
    ] = None,
    top: Annotated[int, top_option("Answers to each question")] = 1,
    as_json: Annotated[
        bool, json_option("One object per question, with places in the text and probabilities.")
    ] = False,
    batch: Annotated[int, batch_option("Windows of the text read together.")] = BATCH_SIZE,
    window: Annotated[int | None, window_option("Questions")] = None,
    device: Device = "auto",
) -> None:
    """Answer from a text: `seqloom answer runs/answer-squad --context page.txt --question "Who was it?" --top 3`."""
    from seqloom.api import Answerer, load
    from seqloom.data.readers import placed, read_filled

    model: Answerer = load(run, device, Answerer)
    text = read_filled(placed(context))
    asked, size = open_lines(arguments(question) if question else None, batch, window)
    _write(model, model.answer(asked, text, top=top, batch_size=batch, window=size), as_json)


def _write(model: "Answerer", found: Iterable["Answered"], as_json: bool) -> None:
    """Every answer as soon as it is there, and at the end what a person should know, apart from the answers."""
    notes = Notes()
    for number, one in enumerate(found, start=1):
        if as_json:
            print_json(_object(one))
        else:
            parts = [(one_line(own.text), f"{own.probability:.4f}") for own in one.answers]
            print("\t".join(part for own in parts for part in own), flush=True)
        if one.unknown:
            notes.see("the vocabulary lacks parts of {lines}", number, f": {one.unknown[0]!r}")
        if one.cut:
            notes.see("of {lines} only the beginning was read (batch.question)", number)
        if one.answers and one.absent > one.answers[0].probability:
            notes.see("the model rather thinks the text has no answer to {lines}", number)
    notes.show()


def _object(one: "Answered") -> dict[str, object]:
    return {
        "question": one.question,
        "answer": one.text or None,
        "answers": [asdict(own) for own in one.answers],
        "absent": one.absent if one.windows else None,
        "windows": one.windows,
        "unknown": list(one.unknown),
        "cut": one.cut,
    }
