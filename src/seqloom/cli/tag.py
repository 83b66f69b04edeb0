"""Tag the words of texts, with a trained tagger."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, Run, Texts, Window, json_option
from seqloom.cli._output import print_predictions
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.tag import TaggedLine

FORMATS: dict[str, Callable[["TaggedLine"], str]] = {
    "text": lambda line: line.to_line(),
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
    from seqloom.predict.tag import TaggerPredictor

    model = load(run, device, TaggerPredictor)
    lines, size = open_lines(texts, batch, window)
    found = model.tag(lines, spaces=spaces, batch_size=batch, window=size)
    print_predictions(model, found, as_json, FORMATS[form or "text"])
