"""Say which of several options is right, with a trained model of choices."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._json import print_json
from seqloom.cli._lines import Notes, one_line, open_lines
from seqloom.cli._options import Device, JsonLines, Run, batch_option, top_option, window_option
from seqloom.cli.match import in_columns
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.api import Chooser, Chosen

TOGETHER = 8


def choose(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="A text and its options; without any, lines with tabs between a text and its options."),
    ] = None,
    top: Annotated[int, top_option("Options named for each text")] = 1,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Texts read together, with all their options.")] = TOGETHER,
    window: Annotated[int | None, window_option("Texts")] = None,
    device: Device = "auto",
) -> None:
    """Say which option is right: `seqloom choose runs/choice-endings "It rained." "…" "…"`, or `… < choices.tsv`."""
    if texts and len(texts) < 3:
        raise UsageError(f"Give a text and two options or more; got {len(texts)} in all.")
    from seqloom.api import Chooser, load

    model: Chooser = load(run, device, Chooser)
    lines, size = open_lines(texts, batch, window)
    given = [list(lines)] if texts else in_columns(lines, 3, "a text and two options or more")
    found = model.choose(((text, options) for text, *options in given), batch_size=batch, window=size)
    _write(model, found, top, as_json)


def _write(model: "Chooser", found: Iterable["Chosen"], top: int, as_json: bool) -> None:
    """Every answer as soon as it is there, and at the end what a person should know, apart from the answers."""
    notes = Notes()
    for number, one in enumerate(found, start=1):
        best = one.options[:top]
        if as_json:
            options = [asdict(option) for option in best]
            print_json({"text": one.text, "options": options, "unknown": list(one.unknown), "cut": one.cut})
        else:
            parts = [(str(own.place), f"{own.probability:.4f}", one_line(own.text)) for own in best]
            print("\t".join(part for own in parts for part in own), flush=True)
        if one.unknown:
            notes.see("the vocabulary lacks parts of {lines}", number, f": {one.unknown[0]!r}")
        if one.cut:
            notes.see(f"of {{lines}} with more than {model.longest} tokens not all was read", number)
    notes.show()
