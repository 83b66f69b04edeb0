"""Say what texts are, with a trained classifier."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, JsonLines, Run, Texts, Window, top_option
from seqloom.cli._output import label_fields, one_line, print_answers, printer

if TYPE_CHECKING:
    from rich.console import Console

    from seqloom.api import Classification


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
    from seqloom.api import Classifier, SeriesClassifier, load
    from seqloom.cli._series import classify_series

    found_model = load(run, device)
    if isinstance(found_model, SeriesClassifier):
        classify_series(found_model, open_lines(texts, 1, 1)[0], top, as_json)
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
    from seqloom.cli._why import shaded

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
