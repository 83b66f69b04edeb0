"""Say which of several options is right, with a trained model of choices."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import Device, JsonLines, Run, batch_option, top_option, window_option
from seqloom.cli._output import one_line, print_answers, printer
from seqloom.cli.match import in_columns
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.matcher import Chosen

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
    from seqloom.predict.loader import load
    from seqloom.predict.matcher import Chooser

    model: Chooser = load(run, device, Chooser)
    lines, size = open_lines(texts, batch, window)
    given = [list(lines)] if texts else in_columns(lines, 3, "a text and two options or more")
    print_answers(
        model.choose(((text, options) for text, *options in given), batch_size=batch, window=size),
        printer(as_json, lambda answer: _object(answer, top), lambda answer: _plain(answer, top)),
        {f"of {{lines}} with more than {model.longest} tokens not all was read": lambda answer: answer.cut},
    )


def _plain(one: "Chosen", top: int) -> str:
    """number of the option, probability, option, the next number …"""
    fields = ((str(own.place), f"{own.probability:.4f}", one_line(own.text)) for own in one.options[:top])
    return "\t".join("\t".join(own) for own in fields)


def _object(one: "Chosen", top: int) -> dict[str, object]:
    options = [asdict(option) for option in one.options[:top]]
    return {"text": one.text, "options": options, "unknown": list(one.unknown), "cut": one.cut}
