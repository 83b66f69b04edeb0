"""The studio, a web page for inspecting trained runs.

    seqloom studio runs/          in a terminal
    seqloom.studio.show(…)        in a notebook

`seqloom.inspect` computes the arrays, this package serves them, and the page in `web/` draws them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqloom.studio.notebook import show as show

__all__ = ["show"]


def __getattr__(name: str) -> object:
    """Import `show` on demand, so that importing this package imports neither torch nor the server."""
    if name == "show":
        from seqloom.studio.notebook import show

        return show
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
