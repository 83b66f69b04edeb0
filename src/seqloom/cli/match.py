"""Say how two texts go together, with a trained model of pairs."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Device, JsonLines, Run, batch_option, top_option, window_option
from seqloom.cli._output import label_fields, print_answers, printer
from seqloom.core.errors import DataError
from seqloom.core.words import shown

if TYPE_CHECKING:
    from seqloom.predict.matcher import Match


def match(
    run: Run,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(help="Two texts, or more of them two by two; without any, lines with a tab between two texts."),
    ] = None,
    top: Annotated[int, top_option("Labels named for each pair")] = 1,
    as_json: JsonLines = False,
    batch: Annotated[int, batch_option("Pairs read together.")] = BATCH_SIZE,
    window: Annotated[int | None, window_option("Pairs")] = None,
    device: Device = "auto",
) -> None:
    """Say how two texts go together: `seqloom match runs/pair-rte "It rained." "It is wet."`, or `… < pairs.tsv`."""
    from seqloom.predict.loader import load
    from seqloom.predict.matcher import Matcher

    model: Matcher = load(run, device, Matcher)
    lines, size = open_lines(pairs, batch, window)
    given = _two_by_two(list(lines)) if pairs else in_columns(lines, 2, "two texts")
    print_answers(
        model.match(((first, second) for first, second in given), top=top, batch_size=batch, window=size),
        printer(as_json, lambda answer: _object(answer, model.scored), _plain),
        {f"of {{lines}} with more than {model.longest} tokens not all was read": lambda answer: answer.cut},
    )


def _two_by_two(texts: list[str]) -> Iterator[list[str]]:
    if len(texts) % 2:
        raise DataError(f"Texts must come two by two; got {len(texts)}, the last {shown(texts[-1])}.")
    return (texts[place : place + 2] for place in range(0, len(texts), 2))


def in_columns(lines: Iterable[str], least: int, what: str) -> Iterator[list[str]]:
    """Lines as what stands between their tabs; a blank line has nothing in any column."""
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t") if line.strip() else [""] * least
        if len(cells) < least or (least == 2 and len(cells) > 2):
            found = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise DataError(f"Line {number:,} must hold {what} with a tab between; it has {found}: {shown(line)}.")
        yield cells


def _plain(one: "Match") -> str:
    """The score, or label, probability, the next label …"""
    return "\t".join(label_fields(one.candidates)) if one.score is None else f"{one.score:.4f}"


def _object(one: "Match", scored: bool) -> dict[str, object]:
    found: dict[str, object] = {"first": one.first, "second": one.second}
    if scored:
        found["score"] = one.score
    else:
        found |= {"label": one.label or None, "probability": one.probability if one.candidates else None}
        found["candidates"] = [asdict(said) for said in one.candidates]
    return {**found, "unknown": list(one.unknown), "cut": one.cut}
