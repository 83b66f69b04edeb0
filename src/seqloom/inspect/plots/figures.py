"""Shared parts of all plots: figure set-up, labels in any script, fonts, colours, and PNG and SVG output.

matplotlib includes DejaVu Sans, which covers Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian and Georgian, but not
Han, kana, Hangul, Devanagari or Thai. For characters that DejaVu Sans lacks, the system fonts are searched. Characters
without a font are reported.

`studio/web/lib/palette.js` defines the same colours for the studio; tests/studio/test_colours.py checks that both
palettes are equal.
"""

import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from seqloom.core.errors import ResourceError, UsageError
from seqloom.core.files import check_writable
from seqloom.core.words import find_nearest
from seqloom.inspect.values import Array
from seqloom.text.vocabularies import GLUE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Style = dict[str, Any]  # keyword arguments of matplotlib
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # colour-blind safe
MORE_COLOURS = (*COLOURS, "#6A3D9A", "#8C5A3C", "#5C5C5C", "#8A9A00", "#0B3C6F", "#A50026")  # for plots with many words
SIGNED_COLORMAP = "RdBu_r"  # red above 0, blue below, as in the studio (colour.js)
FORMATS = (".png", ".svg")
MAX_WIDTH = 32.0  # inches
TOKEN_WIDTH = 0.19  # inches for each token label
# Marks for characters that are invisible or missing in most fonts.
VISIBLE_MARKS = {" ": "␣", "\u00a0": "␣", "\u202f": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", GLUE: "▪"}
JOINERS = ("\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}")


def check_figure_path(path: Path) -> None:
    """Check that a figure can be drawn and written to `path`."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} must end in .png or .svg, which selects the format.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Create it first.")
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file.")
    check_writable(path)
    load_figure_class()


def load_figure_class() -> type["Figure"]:
    """Return matplotlib's `Figure` class, which requires no display, window or global state."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ResourceError("Plots need matplotlib: pip install 'seqloom[plot]'.") from error
    return Figure


def new_figure(width: float = 8, height: float = 4.5) -> "Figure":
    """Return an empty figure; `width` and `height` are in inches."""
    figure = load_figure_class()(figsize=(width, height), dpi=120, layout="constrained")
    padding: Style = {"w_pad": 0.09, "h_pad": 0.09}
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(**padding)
    return figure


def to_bytes(figure: "Figure", suffix: str = ".png", keep_text: bool = False) -> bytes:
    """Encode a figure as PNG or SVG. With `keep_text`, an SVG contains text instead of glyph outlines."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none" if keep_text else "path"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a missing glyph is drawn as a box
        kind = suffix.lower().removeprefix(".")
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


# --- axes -------------------------------------------------------------------------------------------------------------


def tidy(axes: "Axes", grid: bool = True) -> "Axes":
    """Remove the top and right spines and add a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(alpha=0.25)
    return axes


def add_legend(axes: "Axes", location: str = "best", **options: Any) -> None:
    """Add a legend with a light background that keeps it readable in front of lines."""
    style: Style = {"loc": location, "framealpha": 0.85, "edgecolor": "none", "fontsize": 9, **options}
    axes.legend(**style)


def set_heading(axes: "Axes", text: str) -> None:
    """Set a left-aligned panel title."""
    axes.set_title(text, loc="left", fontsize=10)


def mark_isolated_points(values: Iterable[float]) -> Style:
    """Return a line style that marks values between two gaps (NaN), which a line without markers would not show."""
    present = [False, *(value == value for value in values), False]
    isolated = [n for n in range(len(present) - 2) if present[n : n + 3] == [False, True, False]]
    return {"marker": "o", "markersize": 3, "markevery": isolated} if isolated else {}


def largest_magnitude(values: Array) -> float:
    """Return the largest absolute finite value, or 1 if all are zero."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0)) or 1.0


def draw_signed(axes: "Axes", values: Array) -> "AxesImage":
    """Draw a matrix with a diverging colour map that is symmetric around 0."""
    size = largest_magnitude(values)
    return axes.imshow(values, aspect="auto", cmap=SIGNED_COLORMAP, vmin=-size, vmax=size, interpolation="nearest")


def draw_cell_borders(axes: "Axes", rows: int, columns: int, color: str, linewidth: float) -> None:
    """Draw lines between the cells of a matrix and remove the ticks."""
    axes.tick_params(length=0, which="both")
    axes.set_xticks(np.arange(1, columns) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
    axes.grid(which="minor", color=color, linewidth=linewidth)


# --- labels -----------------------------------------------------------------------------------------------------------


def format_token(token: str) -> str:
    """Format a token as a label: white space becomes visible and control characters are escaped."""
    return "".join(
        VISIBLE_MARKS.get(letter) or (letter if letter.isprintable() else f"\\x{ord(letter):02x}") for letter in token
    )


def format_word(word: str) -> str:
    """Format a word in any script as a label.

    Unlike `format_token`, this function keeps joiners, removes direction marks (labels are isolated by other means),
    and adds a dotted circle to a combining mark without a base letter.
    """
    letters = "".join(letter for letter in word if letter in JOINERS or unicodedata.category(letter) != "Cf")
    if not letters.strip("".join(JOINERS)):
        return format_token(word)
    shown = "".join(letter if letter in JOINERS else format_token(letter) for letter in letters)
    return "\N{DOTTED CIRCLE}" + shown if unicodedata.category(shown[0])[0] == "M" else shown


def format_class(name: str) -> str:
    """Format a class name as a label. Unlike `format_token`, this function keeps inner spaces."""
    if not name or name != name.strip():
        return f'"{format_word(name)}"'
    return " ".join(map(format_word, name.split(" ")))


def escape_math(text: str) -> str:
    """Escape dollar signs, which matplotlib would parse as the delimiters of a formula."""
    return text.replace("$", r"\$")


def display_width(word: str) -> int:
    """Return the width of a word in columns: 2 for a wide character, 0 for a combining mark."""
    return sum(
        0 if unicodedata.category(letter)[0] == "M" else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in word
    )


def truncate(line: str, width: int) -> str:
    """Truncate a line to `width` columns."""
    if display_width(line) <= width:
        return line
    ends = accumulate(map(display_width, line))
    return line[: sum(1 for _ in takewhile(lambda end: end < width, ends))].rstrip() + "…"


def figure_width(tokens: int) -> float:
    """Return the width in inches of a figure with one column per token."""
    return min(max(9.0, 4.0 + TOKEN_WIDTH * tokens), MAX_WIDTH)


def set_token_labels(panels: Sequence["Axes"], tokens: Sequence[str]) -> None:
    """Label the x axis of the last panel with tokens.

    Rotate long tokens, and show numbers if there are too many tokens.
    """
    last = panels[-1]
    for axes in panels:
        axes.tick_params(axis="x", length=0, labelbottom=axes is last)
    if figure_width(len(tokens)) == MAX_WIDTH:
        last.set_xlabel("token position")
        return
    labels = [escape_math(format_token(token)) for token in tokens]
    last.set_xticks(range(len(tokens)), labels, fontsize=10, family="monospace")
    for token, tick in zip(tokens, last.get_xticklabels(), strict=True):
        tick.set_rotation(90 if len(format_token(token)) > 1 else 0)
    last.set_xlabel("input token")


# --- fonts ------------------------------------------------------------------------------------------------------------

DEFAULT_FONT = "DejaVu Sans"
# Fonts of placeholder boxes, or of bitmaps instead of outlines
UNUSABLE_FONTS = re.compile("last resort|color|emoji", re.IGNORECASE)
JOINING_SCRIPTS = re.compile(r"[\u0590-\u08ff\u0900-\u0fff\u1000-\u109f\u1780-\u17ff\ufb1d-\ufdff\ufe70-\ufeff]")


class Fonts(NamedTuple):
    """The fonts of a figure and the characters they lack."""

    families: list[str]  # in order of preference
    missing: str  # characters that no family has
    shapes_text: bool  # whether joining and right-to-left scripts are drawn correctly

    def warning(self) -> str | None:
        """Return a one-line warning about missing glyphs with a remedy, or None."""
        if self.missing:
            characters = self.missing[:12] + ("…" if len(self.missing) > 12 else "")
            return (
                f"no installed font has {characters}, so boxes are drawn instead. Install the Noto fonts, which "
                "cover every script (fonts-noto-cjk, fonts-noto-core), or write an .svg file, which contains the "
                "text itself"
            )
        if not self.shapes_text:
            return (
                "matplotlib cannot join Arabic or Indic letters: install version 3.11 or newer, or write an .svg file"
            )
        return None


def choose_fonts(texts: Iterable[str], font: str | None = None) -> Fonts:
    """Choose fonts that cover all characters of the texts.

    The order is `font` if given, the default font, then further fonts as needed. Noto and plain sans-serif fonts are
    preferred, and Han characters use the variant of the texts' language.
    """
    load_figure_class()  # reports a missing matplotlib
    from matplotlib import font_manager, ft2font

    usual_weights = (400, "normal", "regular", "book")
    faces = sorted(
        font_manager.fontManager.ttflist, key=lambda face: face.style == "normal" and face.weight in usual_weights
    )
    installed = {face.name: face.fname for face in faces}  # the upright face of a family comes last
    if font is not None and font not in installed:
        close = find_nearest(font, installed)
        raise UsageError(f"No font '{font}' is installed" + (f"; did you mean {close}?" if close else "."))
    letters = sorted({letter for text in texts for letter in text if letter.isprintable() and not letter.isspace()})
    kana, hangul = (any(low <= letter <= high for letter in letters) for low, high in (("぀", "ヿ"), ("가", "힣")))
    country = "JP" if kana else "KR" if hangul else "SC"

    def preference(name: str) -> tuple[bool, ...]:
        plain = "Sans" in name and not re.search("Mono|Serif|Condensed|Display|UI", name)
        return not plain, not name.startswith("Noto"), not name.endswith(country)

    shapes_text = bool(getattr(ft2font, "__libraqm_version__", "")) or not any(map(JOINING_SCRIPTS.match, letters))
    families = [DEFAULT_FONT] if font is None else [font, DEFAULT_FONT]
    missing = [letter for letter in letters if not any(_has_glyph(installed[name], letter) for name in families)]
    for name in sorted(installed, key=preference):
        covered = {
            letter for letter in missing if not UNUSABLE_FONTS.search(name) and _has_glyph(installed[name], letter)
        }
        if covered:
            families.append(name)
            missing = [letter for letter in missing if letter not in covered]
    return Fonts(families, "".join(missing), shapes_text)


def _has_glyph(path: str, letter: str) -> bool:
    from matplotlib.font_manager import get_font  # get_font caches fonts

    try:
        return bool(get_font(path).get_char_index(ord(letter)))
    except (OSError, RuntimeError):  # matplotlib cannot read this font
        return False


def text_style(texts: Iterable[str], font: str | None = None) -> Style:
    """Return a text style with fonts for all characters and without formula parsing."""
    return {"family": choose_fonts(texts, font).families, "parse_math": False}


# --- colours of gates and states --------------------------------------------------------------------------------------

Theme = Literal["light", "dark"]

# Gate values are drawn from 0 (closed) to 1 (open) in viridis, whose lightness increases for every kind of colour
# vision. Both themes use this scale, so yellow always means open.
GATE_SCALE = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")

# Line colours by the name of a cell's quantity. Quantities that share a panel (all gates, or the candidate and the
# states) are distinguishable for every kind of colour vision. Names that never occur in the same cell may share a
# colour.
QUANTITY_COLOURS: dict[str, dict[Theme, str]] = {
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
# Quantities of new cells, which have other names, get these colours in order.
OTHER_COLOURS: dict[Theme, tuple[str, ...]] = {
    "light": ("#3d87b5", "#5c5c5c", "#b8860b", "#00695c"),
    "dark": ("#8fd3f5", "#c4c4c4", "#fff3a0", "#a6f0d0"),
}


def quantity_colour(name: str, number: int = 0, theme: Theme = "light") -> str:
    """Return the line colour of a quantity; `number` is its index among the cell's quantities."""
    if name in QUANTITY_COLOURS:
        return QUANTITY_COLOURS[name][theme]
    return OTHER_COLOURS[theme][number % len(OTHER_COLOURS[theme])]


def interpolate_colour(stops: Sequence[Sequence[int]], value: float) -> list[int]:
    """Return the red, green and blue of a value between 0 and 1, interpolated between the two nearest stops."""
    position = min(max(value, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(position), len(stops) - 2)
    return [round(a + (b - a) * (position - low)) for a, b in zip(stops[low], stops[low + 1], strict=True)]


def gate_colour(value: float) -> str:
    """Return the colour of a gate value between 0 and 1."""
    return "#" + bytes(interpolate_colour([bytes.fromhex(stop[1:]) for stop in GATE_SCALE], value)).hex()


def gate_colormap() -> "Colormap":
    """Return the colour map of gate values."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("gates", GATE_SCALE)
