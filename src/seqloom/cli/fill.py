"""Predict the tokens at [MASK], with a trained masked language model."""

from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, JsonLines, Texts, Window, top_option
from seqloom.cli._output import print_predictions


def fill(
    run: Annotated[Path, typer.Argument(help="A run of a masked language model, such as bert-pydocs.")],
    texts: Texts = None,
    top: Annotated[int, top_option("Tokens named for each mask")] = 5,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Tell hidden tokens: `seqloom fill runs/bert-pydocs "the [MASK] statement" --top 5`, or `… < input.txt`."""
    from seqloom.predict.gaps import MaskedLMPredictor
    from seqloom.predict.loader import load

    model = load(run, device, MaskedLMPredictor)
    lines, size = open_lines(texts, batch, window)
    print_predictions(model, model.fill(lines, top=top, batch_size=batch, window=size), as_json)
