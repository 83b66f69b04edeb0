"""What all plots share: figure set-up, labels of any script and their fonts, colours, PNG and SVG.

matplotlib brings DejaVu Sans: Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian, Georgian, but no
Han, kana, Hangul, Devanagari or Thai. Letters it lacks are looked for in the fonts of the system,
and named if none has them.

`studio/web/lib/palette.js` has the same colours for the page; tests/studio/test_colours.py compares
the two.
"""

import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
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
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # told apart by colour-blind eyes too
MORE_COLOURS = (*COLOURS, "#6A3D9A", "#8C5A3C", "#5C5C5C", "#8A9A00", "#0B3C6F", "#A50026")  # for many words at once
SIGNED_COLORMAP = "RdBu_r"  # around 0: red above, blue below, as in the studio (colour.js)
FORMATS = (".png", ".svg")
MAX_WIDTH = 32.0  # inches; what does not fit is drawn smaller
TOKEN_WIDTH = 0.19  # inches a token needs to be read
VISIBLE_MARKS = {
    " ": "␣",
    "\u00a0": "␣",
    "\u202f": "␣",
    "\n": "⏎",
    "\t": "⇥",
    "\r": "␍",
    GLUE: "▪",
}  # what cannot be seen, or most fonts lack
JOINERS = ("\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}")


def check_figure_path(path: Path) -> None:
    """Refuse, before any work, a picture that could not be drawn or written in the end."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} must end in .png or .svg: the ending says what kind of picture to draw.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Make it first.")
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file for the picture.")
    check_writable(path)
    load_figure_class()


def load_figure_class() -> type["Figure"]:
    """Return matplotlib's figure, which draws without a screen: no global state, no window."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ResourceError("Pictures need matplotlib: pip install 'seqloom[plot]'.") from error
    return Figure


def new_figure(width: float = 8, height: float = 4.5) -> "Figure":
    """Return an empty figure of so many inches."""
    figure = load_figure_class()(figsize=(width, height), dpi=120, layout="constrained")
    padding: Style = {"w_pad": 0.09, "h_pad": 0.09}
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(**padding)
    return figure


def to_bytes(figure: "Figure", suffix: str = ".png", keep_text: bool = False) -> bytes:
    """Encode a figure as PNG or SVG. `keep_text`: whoever shows the SVG chooses its fonts."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none" if keep_text else "path"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a letter the font lacks is drawn as a box
        kind = suffix.lower().removeprefix(".")
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


# --- axes -------------------------------------------------------------------------------------------------------------


def tidy(axes: "Axes", grid: bool = True) -> "Axes":
    """Remove the frame at the top and the right; add a pale grid."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(alpha=0.25)
    return axes


def add_legend(axes: "Axes", place: str = "best", **options: Any) -> None:
    """Add a legend on a pale ground, so that a line behind it does not strike its words out."""
    look: Style = {"loc": place, "framealpha": 0.85, "edgecolor": "none", "fontsize": 9, **options}
    axes.legend(**look)


def set_heading(axes: "Axes", text: str) -> None:
    """Put a title at the left of a panel."""
    axes.set_title(text, loc="left", fontsize=10)


def mark_isolated_points(values: Iterable[float]) -> Style:
    """Style a line with gaps (NaN): a value between two that are missing is a dot, since a line would not show it."""
    known = [False, *(value == value for value in values), False]
    lone = [n for n in range(len(known) - 2) if known[n : n + 3] == [False, True, False]]
    return {"marker": "o", "markersize": 3, "markevery": lone} if lone else {}


def largest_magnitude(values: Array) -> float:
    """Return how far from zero the finite values go; 1 where all are zero."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0)) or 1.0


def draw_signed(axes: "Axes", values: Array) -> "AxesImage":
    """Draw a matrix of values around 0, the colours symmetrical around it."""
    size = largest_magnitude(values)
    return axes.imshow(values, aspect="auto", cmap=SIGNED_COLORMAP, vmin=-size, vmax=size, interpolation="nearest")


def draw_cell_borders(axes: "Axes", rows: int, columns: int, color: str, linewidth: float) -> None:
    """Draw lines between the squares of a matrix, and no ticks."""
    axes.tick_params(length=0, which="both")
    axes.set_xticks(np.arange(1, columns) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
    axes.grid(which="minor", color=color, linewidth=linewidth)


# --- labels -----------------------------------------------------------------------------------------------------------


def format_token(token: str) -> str:
    """A token as a label: spaces and line ends are seen, and what would change the terminal is spelled out."""
    return "".join(
        VISIBLE_MARKS.get(letter) or (letter if letter.isprintable() else f"\\x{ord(letter):02x}") for letter in token
    )


def format_word(word: str) -> str:
    """A word of any script as a label: as `visible`, but what joins letters stays, directions are left out (labels are
    told apart from their neighbours by other means), and a mark without a letter stands on a dotted circle."""
    kept = "".join(letter for letter in word if letter in JOINERS or unicodedata.category(letter) != "Cf")
    if not kept.strip("".join(JOINERS)):
        return format_token(word)
    shown = "".join(letter if letter in JOINERS else format_token(letter) for letter in kept)
    return "\N{DOTTED CIRCLE}" + shown if unicodedata.category(shown[0])[0] == "M" else shown


def format_class(name: str) -> str:
    """A class as a label. Unlike a token it may have spaces, and these are seen as such within it."""
    if not name or name != name.strip():
        return f'"{format_word(name)}"'
    return " ".join(map(format_word, name.split(" ")))


def escape_math(text: str) -> str:
    """Text in which a dollar sign is a dollar sign; matplotlib would read what stands between two as a formula."""
    return text.replace("$", r"\$")


def display_width(word: str) -> int:
    """The width of a word in letters: two for a wide one, none for a mark."""
    return sum(
        0 if unicodedata.category(letter)[0] == "M" else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in word
    )


def truncate(line: str, width: int) -> str:
    """Shorten a line to so many letters."""
    if display_width(line) <= width:
        return line
    ends = accumulate(map(display_width, line))
    return line[: sum(1 for _ in takewhile(lambda end: end < width, ends))].rstrip() + "…"


def figure_width(tokens: int) -> float:
    """How wide a picture with one column per token should be."""
    return min(max(9.0, 4.0 + TOKEN_WIDTH * tokens), MAX_WIDTH)


def set_token_labels(panels: Sequence["Axes"], tokens: Sequence[str]) -> None:
    """Tokens as labels under the last of these panels, long ones upended; where there are too many, their numbers."""
    last = panels[-1]
    for axes in panels:
        axes.tick_params(axis="x", length=0, labelbottom=axes is last)
    if figure_width(len(tokens)) == MAX_WIDTH:
        last.set_xlabel("number of the token read")
        return
    last.set_xticks(
        range(len(tokens)), [escape_math(format_token(token)) for token in tokens], fontsize=10, family="monospace"
    )
    for token, tick in zip(tokens, last.get_xticklabels(), strict=True):
        tick.set_rotation(90 if len(format_token(token)) > 1 else 0)
    last.set_xlabel("token read, from left to right")


# --- fonts ------------------------------------------------------------------------------------------------------------

DEFAULT_FONT = "DejaVu Sans"
UNUSABLE_FONTS = re.compile(
    "last resort|color|emoji", re.IGNORECASE
)  # boxes for every letter; pictures instead of outlines
JOINING_SCRIPTS = re.compile(r"[\u0590-\u08ff\u0900-\u0fff\u1000-\u109f\u1780-\u17ff\ufb1d-\ufdff\ufe70-\ufeff]")


class Fonts(NamedTuple):
    """The fonts of a picture, and what they cannot draw."""

    families: list[str]  # each for what those before it lack
    missing: str  # letters that none of them has
    joins: bool  # whether letters that change with their neighbours, or run from right to left, come out right

    def warning(self) -> str | None:
        """What will be wrong with the picture and how to mend it, in one line."""
        if self.missing:
            few = self.missing[:12] + ("…" if len(self.missing) > 12 else "")
            return (
                f"no installed font has {few}, so boxes are drawn in their place. Install one that does (Noto fonts "
                "have every script: fonts-noto-cjk, fonts-noto-core), or write an .svg, where text stays text"
            )
        if not self.joins:
            return "this matplotlib cannot join Arabic or Indic letters: take 3.11 or newer, or write an .svg"
        return None


def choose_fonts(texts: Iterable[str], font: str | None = None) -> Fonts:
    """Choose fonts for all letters of these texts: `font` first, if one is given, then the usual one, then what is
    needed. Plain sans-serif fonts come first, Noto's, and Han letters as the other letters' language has them."""
    load_figure_class()  # says what to install where there is no matplotlib
    from matplotlib import font_manager, ft2font

    usual_weights = (400, "normal", "regular", "book")
    faces = sorted(
        font_manager.fontManager.ttflist, key=lambda face: face.style == "normal" and face.weight in usual_weights
    )
    installed = {face.name: face.fname for face in faces}  # of a family the upright face, which comes last
    if font is not None and font not in installed:
        close = find_nearest(font, installed)
        raise UsageError(f"No font '{font}' is installed" + (f"; did you mean {close}?" if close else "."))
    letters = sorted({letter for text in texts for letter in text if letter.isprintable() and not letter.isspace()})
    kana, hangul = (any(low <= letter <= high for letter in letters) for low, high in (("぀", "ヿ"), ("가", "힣")))
    country = "JP" if kana else "KR" if hangul else "SC"

    def preference(name: str) -> tuple[bool, ...]:
        plain = "Sans" in name and not re.search("Mono|Serif|Condensed|Display|UI", name)
        return not plain, not name.startswith("Noto"), not name.endswith(country)

    joins = bool(getattr(ft2font, "__libraqm_version__", "")) or not any(map(JOINING_SCRIPTS.match, letters))
    families = [DEFAULT_FONT] if font is None else [font, DEFAULT_FONT]
    missing = [letter for letter in letters if not any(_has_glyph(installed[name], letter) for name in families)]
    for name in sorted(installed, key=preference):
        drawn = {
            letter for letter in missing if not UNUSABLE_FONTS.search(name) and _has_glyph(installed[name], letter)
        }
        if drawn:
            families.append(name)
            missing = [letter for letter in missing if letter not in drawn]
    return Fonts(families, "".join(missing), joins)


@lru_cache(maxsize=64)
def _load_font(path: str) -> Any:
    from matplotlib.font_manager import get_font

    return get_font(path)


def _has_glyph(path: str, letter: str) -> bool:
    try:
        return bool(_load_font(path).get_char_index(ord(letter)))
    except (OSError, RuntimeError):  # a font that matplotlib cannot read
        return False


def text_style(texts: Iterable[str], font: str | None = None) -> Style:
    """Style words of any script: fonts that have their letters, and no formulas between dollar signs."""
    return {"family": choose_fonts(texts, font).families, "parse_math": False}


# --- colours of gates and states --------------------------------------------------------------------------------------

Theme = Literal["light", "dark"]

# Values of a gate from 0, closed, to 1, open: viridis, whose lightness rises for every kind of colour vision. It is the
# same in both themes, so that yellow is open everywhere.
GATE_SCALE = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")

# Lines by the name of a cell's quantity. Those that are drawn in one panel (the gates of a cell; its new content and
# outputs) differ for every kind of colour vision. Names that no cell has both of may share a colour.
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
# Of a cell that somebody added, quantities with other names take these in turn.
OTHER_COLOURS: dict[Theme, tuple[str, ...]] = {
    "light": ("#3d87b5", "#5c5c5c", "#b8860b", "#00695c"),
    "dark": ("#8fd3f5", "#c4c4c4", "#fff3a0", "#a6f0d0"),
}


def quantity_colour(name: str, number: int = 0, theme: Theme = "light") -> str:
    """The colour of a quantity's line; `number` is its place among the cell's quantities."""
    if name in QUANTITY_COLOURS:
        return QUANTITY_COLOURS[name][theme]
    return OTHER_COLOURS[theme][number % len(OTHER_COLOURS[theme])]


def interpolate_colour(stops: Sequence[Sequence[int]], value: float) -> list[int]:
    """Return red, green and blue of a value between 0 and 1, interpolated between the two nearest stops."""
    place = min(max(value, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    return [round(a + (b - a) * (place - low)) for a, b in zip(stops[low], stops[low + 1], strict=True)]


def gate_colour(value: float) -> str:
    """The colour of a gate's value between 0 and 1."""
    return "#" + bytes(interpolate_colour([bytes.fromhex(stop[1:]) for stop in GATE_SCALE], value)).hex()


def gate_colormap() -> "Colormap":
    """The same scale for images."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("gates", GATE_SCALE)
