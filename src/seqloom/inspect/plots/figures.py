"""What all pictures share: one look, tokens a reader can tell apart, PNG and SVG."""

import io
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqloom.core.errors import ResourceError, UsageError
from seqloom.core.files import check_writable
from seqloom.text.words import GLUE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # told apart by colour-blind eyes too
MORE_COLOURS = (*COLOURS, "#6A3D9A", "#8C5A3C", "#5C5C5C", "#8A9A00", "#0B3C6F", "#A50026")  # for many words at once
SIGNED = "RdBu_r"  # around 0: red above, blue below, as in the studio (colour.js)
FORMATS = (".png", ".svg")
WIDEST = 32.0  # inches; what does not fit is drawn smaller
PER_TOKEN = 0.19  # inches a token needs to be read
MARKS = {
    " ": "␣",
    "\u00a0": "␣",
    "\u202f": "␣",
    "\n": "⏎",
    "\t": "⇥",
    "\r": "␍",
    GLUE: "▪",
}  # what cannot be seen, or most fonts lack
JOINERS = ("\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}")


def check_picture(path: Path) -> None:
    """Refuse, before any work, a picture that could not be drawn or written in the end."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} must end in .png or .svg: the ending says what kind of picture to draw.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Make it first.")
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file for the picture.")
    check_writable(path)
    figure_class()


def figure_class() -> type["Figure"]:
    """Drawing without a screen: no global state, no window."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ResourceError("Pictures need matplotlib: pip install 'seqloom[plot]'.") from error
    return Figure


def new_figure(width: float = 8, height: float = 4.5) -> "Figure":
    figure = figure_class()(figsize=(width, height), dpi=120, layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.09, h_pad=0.09)
    return figure


def tidy(axes: Any, grid: bool = True) -> Any:
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(alpha=0.25)
    return axes


def legend(axes: Any, place: str = "best") -> None:
    """Over a pale ground, so that a line behind it does not strike its words out."""
    axes.legend(loc=place, framealpha=0.85, edgecolor="none", fontsize=9)


def lone_dots(values: Iterable[float]) -> dict[str, Any]:
    """How to plot values with gaps (NaN): one between two that are missing is a dot, since a line would not show it."""
    known = [False, *(value == value for value in values), False]
    lone = [n for n in range(len(known) - 2) if known[n : n + 3] == [False, True, False]]
    return {"marker": "o", "markersize": 3, "markevery": lone} if lone else {}


def to_bytes(figure: "Figure", suffix: str = ".png", text_stays_text: bool = False) -> bytes:
    """`text_stays_text` is about SVG: whoever shows it chooses the font, and may have one that is not here."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none" if text_stays_text else "path"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a letter the font lacks is drawn as a box
        kind = suffix.lower().removeprefix(".")
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def to_png(figure: "Figure") -> bytes:
    return to_bytes(figure, ".png")


def visible(token: str) -> str:
    """A token as a label: spaces and line ends are seen, and what would change the terminal is spelled out."""
    return "".join(
        MARKS.get(letter) or (letter if letter.isprintable() else f"\\x{ord(letter):02x}") for letter in token
    )


def label(word: str) -> str:
    """A word of any script as a label: as `visible`, but what joins letters stays, directions are left out (labels are
    told apart from their neighbours by other means), and a mark without a letter stands on a dotted circle."""
    kept = "".join(letter for letter in word if letter in JOINERS or unicodedata.category(letter) != "Cf")
    if not kept.strip("".join(JOINERS)):
        return visible(word)
    shown = "".join(letter if letter in JOINERS else visible(letter) for letter in kept)
    return "\N{DOTTED CIRCLE}" + shown if unicodedata.category(shown[0])[0] == "M" else shown


def literal(text: str) -> str:
    """Text in which a dollar sign is a dollar sign; matplotlib would read what stands between two as a formula."""
    return text.replace("$", r"\$")


def width_for(tokens: int, margin: float = 4.0) -> float:
    """How wide a picture with one column per token should be."""
    return min(max(9.0, margin + PER_TOKEN * tokens), WIDEST)


def label_tokens(panels: Sequence[Any], tokens: Sequence[str]) -> None:
    """Tokens as labels under the last of these panels, long ones upended; where there are too many, their numbers."""
    for axes in panels:
        axes.tick_params(axis="x", length=0, labelbottom=axes is panels[-1])
    if width_for(len(tokens)) == WIDEST:
        panels[-1].set_xlabel("number of the token read")
        return
    labels = [literal(visible(token)) for token in tokens]
    panels[-1].set_xticks(range(len(tokens)), labels, fontsize=10, family="monospace")
    for token, label in zip(tokens, panels[-1].get_xticklabels(), strict=True):
        label.set_rotation(90 if len(visible(token)) > 1 else 0)
    panels[-1].set_xlabel("token read, from left to right")
