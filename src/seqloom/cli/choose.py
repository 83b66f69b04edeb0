"""Say which of several options is right, with a trained model of choices."""

from typing import Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import Device, JsonLines, Run, batch_option, top_option, window_option
from seqloom.cli._output import print_predictions
from seqloom.core.errors import UsageError

TOGETHER = 8


def choose(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="A text and its options; without any, lines with tabs between a text and its options."),
    ] = None,
    top: Annotated[int, top_option("Options named for each text")] = 1,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Texts read together, with all their options.")] = TOGETHER,
    window: Annotated[int | None, window_option("Texts")] = None,
    device: Device = "auto",
) -> None:
    """Say which option is right: `seqloom choose runs/choice-endings "It rained." "…" "…"`, or `… < choices.tsv`."""
    if texts and len(texts) < 3:
        raise UsageError(f"Give a text and two options or more; got {len(texts)} in all.")
    from seqloom.predict.base import split_columns
    from seqloom.predict.loader import load
    from seqloom.predict.matching import ChoicePredictor

    model = load(run, device, ChoicePredictor)
    lines, size = open_lines(texts, batch, window)
    given = [list(lines)] if texts else split_columns(lines, 3, "a text and two options or more")
    choices = ((text, options) for text, *options in given)
    print_predictions(model, model.choose(choices, top=top, batch_size=batch, window=size), as_json)
