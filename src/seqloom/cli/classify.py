"""Say what texts are, with a trained classifier."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, JsonLines, Run, Texts, Window, top_option
from seqloom.cli._output import print_predictions
from seqloom.core.words import one_line

if TYPE_CHECKING:
    from rich.text import Text

    from seqloom.inspect.views.labels import Why
    from seqloom.predict.classify import Classification

FOR, AGAINST, LOOKED = (24, 128, 62), (178, 34, 52), (30, 100, 190)  # green, red; blue where attention takes no side
FAINT = 0.08  # of the largest weight; less is as good as nothing, and has no ground


def classify(
    run: Run,
    texts: Texts = None,
    top: Annotated[int, top_option("Labels named for each text")] = 1,
    why: Annotated[bool, typer.Option("--why", help="How much each word weighed.")] = False,
    color: Annotated[
        bool | None,
        typer.Option("--color/--no-color", help="With --why: colours or numbers. [default: by the terminal]"),
    ] = None,
    as_json: JsonLines = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Say what each line is: `seqloom classify runs/X "a gripping, funny film" --top 2 --why`, or `… < input.txt`."""
    from seqloom.predict.classify import ClassifierPredictor, SeriesClassifierPredictor
    from seqloom.predict.loader import load

    model = load(run, device)
    if isinstance(model, SeriesClassifierPredictor):
        print_predictions(model, model.predict(open_lines(texts, 1, 1)[0], top=top), as_json)
        return
    classifier = load(run, device, ClassifierPredictor)
    lines, size = open_lines(texts, batch, window)
    found = classifier.classify(lines, top=top, why=why, batch_size=batch, window=size)
    print_predictions(classifier, found, as_json, print_one=_colour_printer(color) if why and not as_json else None)


def _colour_printer(color: bool | None) -> "Callable[[Classification], None] | None":
    """Return the function that prints a text with its words in colours; None where there are none."""
    from seqloom.cli._output import coloured_console

    console, coloured = coloured_console(color)
    few = console.color_system in ("standard", "windows")

    def show(one: "Classification") -> None:
        labels = "  ".join(f"{one_line(each.label)} {each.probability:.4f}" for each in one.candidates)
        console.print(labels, markup=False, soft_wrap=True)
        if one.why is not None:
            console.print(shaded(one.text, one.why, few=few), soft_wrap=True)

    return show if coloured else None


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
