"""Answer questions about a text, with words of the text."""

from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._input import arguments, open_lines
from seqloom.cli._options import BATCH_SIZE, Device, Run, batch_option, json_option, top_option, window_option
from seqloom.cli._output import print_predictions


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
    from seqloom.predict.loader import load
    from seqloom.predict.matching import AnswerPredictor

    model = load(run, device, AnswerPredictor)
    text = read_filled(expand_home(context))
    asked, size = open_lines(arguments(question) if question else None, batch, window)
    print_predictions(model, model.answer(asked, text, top=top, batch_size=batch, window=size), as_json)
