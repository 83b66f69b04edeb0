"""Say what a damaged text was, or what stood at its gaps, with a trained denoiser."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, JsonLines, Texts, Window
from seqloom.cli._output import one_line, print_answers, printer

if TYPE_CHECKING:
    from seqloom.predict.denoiser import Restored


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
    from seqloom.predict.denoiser import Restorer
    from seqloom.predict.loader import load

    model: Restorer = load(run, device, Restorer)
    lines, size = open_lines(texts, batch, window)
    options = {name: value for name, value in (("beam", beam), ("max_length", max_length)) if value is not None}
    print_answers(
        model.restore(lines, noise=noise, seed=seed, batch_size=batch, window=size, **options),
        printer(as_json, asdict, lambda answer: _plain(answer, noise)),
        {"what was said of {lines} did not come to an end and was cut": lambda answer: not answer.finished},
    )


def _plain(one: "Restored", noise: bool) -> str:
    """What was read, where that is not what came; the text restored; and what was said of each gap."""
    fields = [one.read] * noise + [one.restored, *(one.spans or [])]
    return "\t".join(map(one_line, fields))
