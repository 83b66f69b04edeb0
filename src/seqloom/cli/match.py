"""Say how two texts go together, with a trained model of pairs."""

from collections.abc import Iterator
from typing import Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Device, JsonLines, Run, batch_option, top_option, window_option
from seqloom.cli._output import print_predictions
from seqloom.core.errors import DataError
from seqloom.core.words import shown


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
    from seqloom.predict.base import split_columns
    from seqloom.predict.loader import load
    from seqloom.predict.matching import PairPredictor

    model = load(run, device, PairPredictor)
    lines, size = open_lines(pairs, batch, window)
    given = _two_by_two(list(lines)) if pairs else split_columns(lines, 2, "two texts", most=2)
    found = model.match(((first, second) for first, second in given), top=top, batch_size=batch, window=size)
    print_predictions(model, found, as_json)


def _two_by_two(texts: list[str]) -> Iterator[list[str]]:
    if len(texts) % 2:
        raise DataError(f"Texts must come two by two; got {len(texts)}, the last {shown(texts[-1])}.")
    return (texts[place : place + 2] for place in range(0, len(texts), 2))
