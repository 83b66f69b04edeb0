"""Say what texts are, with a trained classifier."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, JsonLines, Run, Texts, Window, top_option
from seqloom.cli._output import LabelProbability, label_fields, one_line, print_answers, printer
from seqloom.core.errors import DataError
from seqloom.core.words import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from seqloom.inspect.views.why import Why
    from seqloom.predict.classifier import Classification, SeriesClassifier

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
    from seqloom.predict.classifier import Classifier, SeriesClassifier
    from seqloom.predict.loader import load

    found_model = load(run, device)
    if isinstance(found_model, SeriesClassifier):
        _classify_series(found_model, open_lines(texts, 1, 1)[0], top, as_json)
        return
    model: Classifier = load(run, device, Classifier)
    lines, size = open_lines(texts, batch, window)
    print_answers(
        model.classify(lines, top=top, why=why, batch_size=batch, window=size),
        _printer(why, color, as_json),
        {f"of {{lines}} with more than {model.longest} tokens only the beginning was read": lambda answer: answer.cut},
        note_unknown=not model.spells,
    )


def _printer(why: bool, color: bool | None, as_json: bool) -> Callable[["Classification"], None]:
    """Return the function that prints an answer: as JSON, in colours or as text."""
    if why and not as_json:
        from seqloom.cli._console import coloured_console

        console, coloured = coloured_console(color)
        if coloured:
            return lambda one: _show(console, one)
    return printer(as_json, _object, _plain)


def _plain(one: "Classification") -> str:
    """label, probability, the next label …; with --why each word and its weight, in one last field."""
    fields = label_fields(one.candidates)
    if one.why is not None:
        sign = "+" if one.why.kind == "influence" else ""
        fields.append(" ".join(f"{_visible(word.text)} {word.weight:{sign}.3f}" for word in one.why.words))
    return "\t".join(fields)


def _visible(text: str) -> str:
    """A word or a character, none of which may look like the space between two."""
    return "".join("␣" if letter.isspace() else letter for letter in text)


def _show(console: "Console", one: "Classification") -> None:
    labels = "  ".join(f"{one_line(said.label)} {said.probability:.4f}" for said in one.candidates)
    console.print(labels, markup=False, soft_wrap=True)
    if one.why is not None:
        few = console.color_system in ("standard", "windows")
        console.print(shaded(one.text, one.why, few=few), soft_wrap=True)


def _object(one: "Classification") -> dict[str, object]:
    found: dict[str, object] = {
        "text": one.text,
        "label": one.label or None,
        "probability": one.probability if one.candidates else None,
        "candidates": [asdict(said) for said in one.candidates],
        "unknown": list(one.unknown),
        "cut": one.cut,
    }
    if one.why is not None:
        found["why"] = {"kind": one.why.kind, "words": [asdict(word) for word in one.why.words], "end": one.why.end}
    return found


# --- words in colours: --why ------------------------------------------------------------------------------------------


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


# --- series -----------------------------------------------------------------------------------------------------------


def _classify_series(model: "SeriesClassifier", lines: Iterable[str], top: int, as_json: bool) -> None:
    """A series in every line: its numbers, all of the first variable, then all of the second, and so on."""
    print_answer = printer(as_json, _series_object, _series_line)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            print_answer(model.classify(_numbers(line, number), top=top))
        else:
            print("", flush=True)


def _series_line(candidates: Sequence[LabelProbability]) -> str:
    return "\t".join(f"{one.label}\t{one.probability:.4f}" for one in candidates)


def _series_object(candidates: Sequence[LabelProbability]) -> dict[str, object]:
    said = [{"label": one.label, "probability": one.probability} for one in candidates]
    return {**said[0], "candidates": said}


def _numbers(line: str, number: int) -> Sequence[float]:
    from seqloom.data.series_files import number_of

    cells = line.replace("\t", ",").replace(";", ",").split(",") if any(c in line for c in ",;\t") else line.split()
    try:
        return [number_of(cell) for cell in cells]
    except ValueError:
        raise DataError(
            f"Line {number:,} must be finite numbers with commas or spaces between; got {shown(line)}."
        ) from None
