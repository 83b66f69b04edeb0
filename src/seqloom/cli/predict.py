"""Predict line by line with a trained model of any task."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import Device, JsonLines, Run, Texts, Window
from seqloom.cli._output import print_predictions
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.base import Predictor


def predict(
    run: Run,
    texts: Texts = None,
    file: Annotated[Path | None, typer.Option(help="A UTF-8 file to read, line by line.")] = None,
    as_json: JsonLines = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Lines computed together.")] = 32,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Predict each line with any model: `seqloom predict runs/X "a text"`, `… --file lines.txt`, or `… < lines.txt`."""
    if texts and file is not None:
        raise UsageError("Give texts or a --file to read, not both.")
    from seqloom.predict.loader import load

    model: Predictor[Any] = load(run, device)
    lines, size = open_lines(texts, batch, window, file)
    print_predictions(model, model.predict(lines, batch_size=batch, window=size), as_json)
