"""The command points of `seqloom inspect`: vectors of texts as points in the plane."""

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, DataDir, JsonObject, PlotOut, Pooling, RunData, TextRun, Texts
from seqloom.cli._output import (
    Notes,
    check_plot_path,
    make_table,
    note_unknown,
    open_wide_console,
    print_notes,
    show_view,
)
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_count, shorten

if TYPE_CHECKING:
    from seqloom.inspect.values import Array

MAX_SHOWN_TEXT = 60  # characters of a text in the table
POOLED = {  # the vectors in the title of the plot
    "mean": "mean of the states",
    "first": "first state",
    "last": "last state",
    "max": "maximum of the states",
}
LabelledText = tuple[str, str]  # a text, and its label or ""


def points(
    run: TextRun,
    texts: Texts = None,
    pooling: Pooling = "mean",
    method: Annotated[
        Literal["pca", "tsne"], typer.Option(help="Projection: pca preserves distances, tsne preserves neighbourhoods.")
    ] = "pca",
    labels: Annotated[
        bool, typer.Option("--labels", help="Read a label after a tab in each line, and colour the points by label.")
    ] = False,
    split: Annotated[
        Literal["train", "dev", "test"] | None,
        typer.Option(help="Read the texts and labels of this split of the run's data instead."),
    ] = None,
    count: Annotated[int, typer.Option(min=4, help="With --split: number of texts.")] = 100,
    font: Annotated[
        str | None, typer.Option(help="Font of the plot. [default: a font that has all characters]")
    ] = None,
    out: PlotOut = None,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Show vectors of texts as points: `seqloom inspect points runs/X --pooling last --out points.png < lines.txt`."""
    import numpy as np

    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.inputs import WordSelection, draw_points, project
    from seqloom.inspect.views.points import colour_by_group
    from seqloom.predict.embeddings import embed, get_state_reader
    from seqloom.predict.loader import load
    from seqloom.predict.word_vectors import labelled_texts

    check_plot_path(out)
    if split is not None and (texts or labels):
        raise UsageError("--split reads the texts and labels of the run's data; leave out the texts and --labels.")
    model, notes = load(run, "cpu"), Notes()
    get_state_reader(model)  # raises an error for a model without text vectors before lines are read
    if split is not None:
        with use_data_folder(data_dir, data):
            rows = list(islice(labelled_texts(model, split), count))
    else:
        lines = open_lines(texts, BATCH_SIZE, None)[0]
        rows = read_labels(lines) if labels else [(line.strip(), "") for line in lines]
    rows = [(text, label) for text, label in rows if text]
    unique = list(dict(rows).items())
    list(note_unknown((text for text, _ in unique), model, notes))
    vectors = embed(model, [text for text, _ in unique], pooling, normalize=True)
    plane, ratios = project(vectors, method, "text")
    groups = colour_by_group("label", "label", [label for _, label in unique])
    has_labels = any(label for _, label in unique)
    selection = WordSelection(
        [text for text, _ in unique],
        groups.values.astype(int).tolist() if has_labels else [-1] * len(unique),
        groups.groups if has_labels else [],
    )
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = cosines.argmax(axis=1)
    if dropped := len(rows) - len(unique):
        print_notes([f"{format_count(dropped, 'repeated text')} left out"])
    title = f"{run.name}: {POOLED[pooling]} of each text"
    show_view(
        out,
        lambda: draw_points(plane, ratios, selection, title, font, "text"),
        as_json,
        lambda: {
            "run": str(run),
            "pooling": pooling,
            "method": method,
            "explained_variance_ratio": ratios,
            "points": [
                {
                    "text": text,
                    "label": label or None,
                    "x": plane[row, 0],
                    "y": plane[row, 1],
                    "nearest": unique[nearest[row]][0],
                    "cosine": cosines[row, nearest[row]],
                }
                for row, (text, label) in enumerate(unique)
            ],
        },
        lambda: print_points(unique, plane, ratios, nearest, cosines),
    )
    notes.show()


def read_labels(lines: Iterable[str]) -> list[LabelledText]:
    """Read lines of a text, a tab and a label."""
    rows = []
    for number, line in enumerate(lines, start=1):
        text, _, label = line.rpartition("\t")
        if line.strip() and not (text.strip() and label.strip()):
            raise DataError(
                "With --labels, a line must consist of a text, a tab and a label; "
                f"line {number:,} is {shorten(line)!r}."
            )
        rows.append((text.strip(), label.strip()))
    return rows


def print_points(
    rows: list[LabelledText], plane: "Array", ratios: "Array | None", nearest: "Array", cosines: "Array"
) -> None:
    """Print the coordinates of each text and its nearest text."""
    from rich.text import Text

    console, has_labels = open_wide_console(), any(label for _, label in rows)
    table = make_table(["x", "y", "  text", *["label"] * has_labels, "  nearest text", "cosine"], left=0)
    for column in (2, len(table.columns) - 2):
        table.columns[column].justify = "left"
    for row, (text, label) in enumerate(rows):
        near = int(nearest[row])
        shown = [Text(f"  {shorten(text, MAX_SHOWN_TEXT)}"), *[Text(label)] * has_labels]
        shown.append(Text(f"  {shorten(rows[near][0], MAX_SHOWN_TEXT)}"))
        table.add_row(f"{plane[row, 0]:.3f}", f"{plane[row, 1]:.3f}", *shown, f"{cosines[row, near]:.3f}")
    console.print(table)
    if ratios is not None:
        both = " and ".join(f"{ratio:.0%}" for ratio in ratios[:2])
        console.print(f"\nx and y are the first two principal components, with {both} of the variance", markup=False)
