"""Where commands print that speak in colours, or without them."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def coloured_console(color: bool | None) -> tuple["Console", bool]:
    """Where to print, and whether in colours: as told, else by the terminal."""
    console = _console(color)
    return console, console.color_system is not None and not console.no_color if color is None else color


def _console(color: bool | None) -> "Console":
    from rich.console import Console

    if color is None:
        return Console(highlight=False)
    if color and not sys.stdout.isatty():  # nobody can be asked how many colours there are
        return Console(highlight=False, force_terminal=True, color_system="truecolor", no_color=False)
    return Console(highlight=False, no_color=not color)
