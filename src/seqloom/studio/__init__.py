"""The studio: a page in the browser that shows the insides of trained runs.

    seqloom studio runs/          in a terminal
    seqloom.studio.show(…)        in a notebook

`inspect` makes the arrays; what is here only hands them out, and the page in `web/` draws them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqloom.studio.notebook import show as show

__all__ = ["show"]


def __getattr__(name: str) -> object:
    """On demand, so that looking at the package loads neither torch nor a server."""
    if name == "show":
        from seqloom.studio.notebook import show

        return show
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
