"""Answer questions about a text, with words of the text."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import arguments, open_lines
from seqloom.cli._options import BATCH_SIZE, Device, Run, batch_option, json_option, top_option, window_option
from seqloom.cli._output import one_line, print_answers, printer

if TYPE_CHECKING:
    from seqloom.predict.answerer import Answered


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
    from seqloom.data.files import expand_home, read_filled
    from seqloom.predict.answerer import Answerer
    from seqloom.predict.loader import load

    model: Answerer = load(run, device, Answerer)
    text = read_filled(expand_home(context))
    asked, size = open_lines(arguments(question) if question else None, batch, window)
    print_answers(
        model.answer(asked, text, top=top, batch_size=batch, window=size),
        printer(as_json, _object, _plain),
        {
            "of {lines} only the beginning was read (batch.question)": lambda answer: answer.cut,
            "the model rather thinks the text has no answer to {lines}": _rather_absent,
        },
    )


def _rather_absent(one: "Answered") -> bool:
    return bool(one.answers) and one.absent > one.answers[0].probability


def _plain(one: "Answered") -> str:
    """answer, probability, the next answer …"""
    return "\t".join(field for own in one.answers for field in (one_line(own.text), f"{own.probability:.4f}"))


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
