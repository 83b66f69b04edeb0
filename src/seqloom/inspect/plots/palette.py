"""The colours of gates and states, for plots, the terminal and the studio.

`studio/web/lib/palette.js` has the same values for the page; tests/studio/test_colours.py compares the two.
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

Theme = Literal["light", "dark"]

# Values of a gate from 0, closed, to 1, open: viridis, whose lightness rises for every kind of colour vision. It is the
# same in both themes, so that yellow is open everywhere.
GATE_SCALE = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")

# Lines by the name of a cell's quantity. Those that are drawn in one panel (the gates of a cell; its new content and
# outputs) differ for every kind of colour vision. Names that no cell has both of may share a colour.
QUANTITIES: dict[str, dict[Theme, str]] = {
    "f": {"light": "#6b4fbb", "dark": "#9a6bff"},
    "i": {"light": "#c2510a", "dark": "#ff7f2a"},
    "o": {"light": "#009e73", "dark": "#2fa37c"},
    "z": {"light": "#6b4fbb", "dark": "#9a6bff"},
    "r": {"light": "#c2510a", "dark": "#ff7f2a"},
    "T": {"light": "#7a1f5c", "dark": "#ffb3d9"},
    "g": {"light": "#e0679f", "dark": "#e0679f"},
    "candidate": {"light": "#e0679f", "dark": "#e0679f"},
    "c": {"light": "#8a6d00", "dark": "#e8cf5a"},
    "h": {"light": "#1f5fbf", "dark": "#4f8ff7"},
    "y": {"light": "#2b2b2b", "dark": "#eceff4"},
}
# Of a cell that somebody added, quantities with other names take these in turn.
OTHERS: dict[Theme, tuple[str, ...]] = {
    "light": ("#3d87b5", "#5c5c5c", "#b8860b", "#00695c"),
    "dark": ("#8fd3f5", "#c4c4c4", "#fff3a0", "#a6f0d0"),
}


def quantity_colour(name: str, number: int = 0, theme: Theme = "light") -> str:
    """The colour of a quantity's line; `number` is its place among the cell's quantities."""
    if name in QUANTITIES:
        return QUANTITIES[name][theme]
    return OTHERS[theme][number % len(OTHERS[theme])]


def gate_colour(value: float) -> str:
    """The colour of a gate's value between 0 and 1."""
    place = min(max(value, 0.0), 1.0) * (len(GATE_SCALE) - 1)
    low = min(int(place), len(GATE_SCALE) - 2)
    parts = zip(*(bytes.fromhex(stop[1:]) for stop in GATE_SCALE[low : low + 2]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in parts)


def gate_colormap() -> "Colormap":
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("gates", GATE_SCALE)
