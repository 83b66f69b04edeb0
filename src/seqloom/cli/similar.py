"""Find the lines nearest to a query, by the vectors of any trained model that reads text."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import arguments, file_lines, open_lines
from seqloom.cli._options import (
    BATCH_SIZE,
    WINDOW_BATCHES,
    Batch,
    Device,
    Pooling,
    TextRun,
    Texts,
    json_option,
    top_option,
)
from seqloom.cli._output import Notes, print_json, unknown_of, unknown_seen
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import one_line

if TYPE_CHECKING:
    from seqloom.predict.embeddings import SimilarTexts


def similar(
    run: TextRun,
    texts: Texts = None,
    query: Annotated[list[str] | None, typer.Option(help="What to look for; may be given more than once.")] = None,
    query_file: Annotated[Path | None, typer.Option(help="A file with a query in each line.")] = None,
    top: Annotated[int, top_option("Lines shown for each query")] = 5,
    pooling: Pooling = "mean",
    as_json: Annotated[bool, json_option("One object per query.")] = False,
    batch: Batch = BATCH_SIZE,
    device: Device = "auto",
) -> None:
    """Find lines like a query: `seqloom similar runs/minilm --query "a funny film" < lines.txt`."""
    queries = _queries(query or [], query_file)
    from seqloom.predict.loader import load

    model = load(run, device)
    lines, _ = open_lines(texts, batch, None)
    notes = Notes()
    seen = unknown_seen(lines, model, notes)
    found = model.similar(queries, seen, top=top, pooling=pooling, batch_size=batch, window=WINDOW_BATCHES * batch)
    for place, one in enumerate(found):
        if as_json:
            print_json({"query": one.query, "similar": [asdict(near) for near in one.best]})
        else:
            _show(one, named=len(found) > 1, first=place == 0)
    for asked in queries:
        if unknown := unknown_of(model, asked):
            typer.echo(f"note: the vocabulary lacks parts of the query {asked!r}: {unknown[0]!r}", err=True)
    notes.show()
    _notes(found[0])


def _queries(given: list[str], file: Path | None) -> list[str]:
    queries = arguments(given)
    if file is not None:
        queries = [*queries, *(line for line in file_lines(file, "a query") if line.strip())]
    if not queries and file is not None:
        raise DataError(f"{file} holds no query: every line is blank.")
    if not queries:
        raise UsageError('What are the lines to be like? Say --query "…", or --query-file FILE with one in each line.')
    return queries


def _show(found: "SimilarTexts", named: bool, first: bool) -> None:
    """Score, number of the line, line; of several queries each after its own heading."""
    if named:
        print("" if first else "\n", one_line(found.query), ":", sep="")
    for near in found.best:
        print(f"{near.score:z.4f}", near.line, one_line(near.text), sep="\t")


def _notes(found: "SimilarTexts") -> None:
    if not found.texts:
        typer.echo("note: there are no lines to compare with: give them as input, < lines.txt", err=True)
    if found.blank:
        lines = found.texts + found.blank
        typer.echo(f"note: blank lines are like nothing, {found.blank:,} of {lines:,} here", err=True)
