"""Say what the words of texts are, with a trained tagger."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._json import print_json
from seqloom.cli._lines import Notes, one_line, open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, Run, Texts, Window, json_option
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.api import TaggedLine, Tagger


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
    from seqloom.api import Tagger, load

    model: Tagger = load(run, device, Tagger)
    lines, size = open_lines(texts, batch, window)
    found = model.tag(lines, spaces=spaces, batch_size=batch, window=size)
    _write(model, found, "json" if as_json else form or "text")


def _write(model: "Tagger", found: Iterable["TaggedLine"], form: str) -> None:
    """Every answer as soon as it is there, and at the end what a person should know, apart from the answers."""
    notes = Notes()
    for number, one in enumerate(found, start=1):
        if form == "json":
            print_json(_object(one))
        elif form == "conll":
            print("".join(f"{word.text}\t{word.tag}\n" for word in one.words), flush=True)
        elif form == "words":
            print(" ".join(f"{word.text}/{word.tag}" for word in one.words), flush=True)
        else:
            print(one_line(one.marked), flush=True)
        if one.unknown and not model.spells:
            notes.see("the vocabulary lacks parts of {lines}", number, f": {one.unknown[0]!r}")
        if one.pieces > 1:
            notes.see(f"read in pieces of at most {model.longest} tokens: {{lines}}", number)
    notes.show()


def _object(one: "TaggedLine") -> dict[str, object]:
    found: dict[str, object] = {"text": one.text}
    if one.entities is not None:
        found["spans"] = [asdict(entity) for entity in one.entities]
    return {**found, "words": [asdict(word) for word in one.words], "unknown": list(one.unknown), "pieces": one.pieces}
