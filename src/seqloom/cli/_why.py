"""`classify --why` in colour: the text, each word on a ground as strong as it weighed."""

from typing import TYPE_CHECKING

from seqloom.cli._output import one_line

if TYPE_CHECKING:
    from rich.text import Text

    from seqloom.inspect.why import Why

FOR, AGAINST, LOOKED = (24, 128, 62), (178, 34, 52), (30, 100, 190)  # green, red; blue where attention takes no side
FAINT = 0.08  # of the largest weight; less is as good as nothing, and has no ground


def shaded(text: str, why: "Why", *, few: bool = False) -> "Text":
    """The text as it came. The strongest word has the full colour, the others a share of it.

    Where a terminal has `few` colours there are no shares: strong words stand on the colour, others are written in it.
    """
    from rich.text import Text

    largest = max((abs(word.weight) for word in why.words), default=0.0)
    made = Text(one_line(text))
    for word in why.words:
        share = abs(word.weight) / largest if largest else 0.0
        if share >= FAINT:
            style = _plain_style if few else _style
            made.stylize(style(word.weight, share, why.kind), word.start, word.end)
    return made


def _style(weight: float, share: float, kind: str) -> str:
    """From dark to the full colour, with letters that can be read on it."""
    full = LOOKED if kind == "attention" else FOR if weight > 0 else AGAINST
    ground = tuple(round(255 + (part - 255) * share) for part in full)
    return f"{'#ffffff' if share > 0.5 else '#000000'} on rgb({ground[0]},{ground[1]},{ground[2]})"


def _plain_style(weight: float, share: float, kind: str) -> str:
    name = "blue" if kind == "attention" else "green" if weight > 0 else "red"
    return f"white on {name}" if share > 0.5 else name
