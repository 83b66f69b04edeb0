"""Pictures that commands draw besides what they print."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_out(out: Path | None) -> None:
    """Refuse, before any work, what could not be drawn."""
    if out is not None:
        from seqloom.inspect.plots.figures import check_picture

        check_picture(out)


def write_picture(out: Path, figure: "Figure", text_stays_text: bool = False) -> None:
    from seqloom.core.files import write_atomic
    from seqloom.inspect.plots.figures import to_bytes

    write_atomic(out, to_bytes(figure, out.suffix, text_stays_text))
    typer.echo(f"drawn: {out}", err=True)
