"""Say what the words of texts are, with a trained tagger."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, Run, Texts, Window, json_option
from seqloom.cli._output import one_line, print_answers, printer
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.tagger import TaggedLine

FORMATS: dict[str, Callable[["TaggedLine"], str]] = {
    "text": lambda line: one_line(line.marked),
    "conll": lambda line: "".join(f"{word.text}\t{word.tag}\n" for word in line.words),
    "words": lambda line: " ".join(f"{word.text}/{word.tag}" for word in line.words),
}


def tag(
    run: Run,
    texts: Texts = None,
    form: Annotated[
        Literal["text", "conll", "words"] | None,
        typer.Option("--format", help="text: Pankaj:PER lives …; conll: a word a line; words: Pankaj/B-PER lives/O …"),
    ] = None,
    as_json: Annotated[bool, json_option("One object per line, with character offsets and probabilities.")] = False,
    spaces: Annotated[
        bool, typer.Option("--spaces", help="Words are what stands between white space, punctuation and all.")
    ] = False,
    batch: Batch = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
) -> None:
    """Say what each word is: `seqloom tag runs/tag-people "Pankaj lives in Munich"`, or `… < input.txt`."""
    if as_json and form is not None:
        raise UsageError("--json is a format of its own; leave out --format.")
    from seqloom.predict.loader import load
    from seqloom.predict.tagger import Tagger

    model: Tagger = load(run, device, Tagger)
    lines, size = open_lines(texts, batch, window)
    print_answers(
        model.tag(lines, spaces=spaces, batch_size=batch, window=size),
        printer(as_json, _object, FORMATS[form or "text"]),
        {f"read in pieces of at most {model.longest} tokens: {{lines}}": lambda line: line.pieces > 1},
        note_unknown=not model.spells,
    )


def _object(one: "TaggedLine") -> dict[str, object]:
    found: dict[str, object] = {"text": one.text}
    if one.entities is not None:
        found["spans"] = [asdict(entity) for entity in one.entities]
    return {**found, "words": [asdict(word) for word in one.words], "unknown": list(one.unknown), "pieces": one.pieces}
