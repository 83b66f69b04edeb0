"""Restore damaged texts, or what stood at their gaps, with a trained denoiser."""

from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, JsonLines, Texts, Window
from seqloom.cli._output import print_predictions
from seqloom.core.words import one_line


def restore(
    run: Annotated[Path, typer.Argument(help="A run of the task denoise, such as denoise-pydocs.")],
    texts: Texts = None,
    noise: Annotated[bool, typer.Option("--noise", help="Damage each text first, as in training.")] = False,
    seed: Annotated[int, typer.Option(help="With --noise: of its draws.")] = 1,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses kept; 1 is greedy. [default: as its recipe says]")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Most tokens said. [default: 2 × those read + 20]")
    ] = None,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Restore damaged texts: `seqloom restore runs/denoise-pydocs "the [MASK] statement"`, or `… < input.txt`."""
    from seqloom.predict.gaps import DenoiserPredictor, RestoredText
    from seqloom.predict.loader import load

    def after_read(one: RestoredText) -> str:
        """The damaged text, then what was made of it."""
        return f"{one_line(one.read)}\t{one.to_line()}"

    model = load(run, device, DenoiserPredictor)
    lines, size = open_lines(texts, batch, window)
    options = {name: value for name, value in (("beam", beam), ("max_length", max_length)) if value is not None}
    found = model.restore(lines, noise=noise, seed=seed, batch_size=batch, window=size, **options)
    print_predictions(model, found, as_json, after_read if noise else None)
