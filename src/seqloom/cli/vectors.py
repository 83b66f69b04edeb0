"""Commands for text embeddings and word vectors."""

import io
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._input import check_unicode, open_lines, read_file_lines
from seqloom.cli._options import (
    BATCH_SIZE,
    WINDOW_BATCHES,
    Batch,
    Device,
    JsonObject,
    NewFile,
    NewRun,
    Pooling,
    TextRun,
    Texts,
    check_import,
    check_new_file,
    json_option,
    top_option,
)
from seqloom.cli._output import (
    Notes,
    check_new_output,
    check_plot_path,
    find_unknown_pieces,
    note_unknown,
    print_json,
    print_notes,
    write_plot,
)
from seqloom.cli._tables import TableColumns, TableFile, TableIn, TableOut, check_table_options
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_count, one_line

if TYPE_CHECKING:
    from seqloom.evaluate.word_space import NearWord, WordSpace

words = typer.Typer(help="Query, plot, import and export word vectors.", no_args_is_help=True, rich_markup_mode=None)
WordRun = Annotated[
    Path, typer.Argument(help="Run directory of word vectors, or of any model with tokenizer.kind=words.")
]
SHOWN_WORDS = 12  # maximum number of words of a plot that are printed


def embed(
    run: TextRun,
    texts: Texts = None,
    pooling: Pooling = "mean",
    normalize: Annotated[bool, typer.Option("--normalize", help="Normalize the vectors to length 1.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The .npy file to write, or a table with --in. [default: standard output, which must be redirected]"
        ),
    ] = None,
    batch: Batch = BATCH_SIZE,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
) -> None:
    """Compute an embedding for each line, as a NumPy file: `seqloom embed runs/X < lines.txt > vectors.npy`.

    With --in, the texts are read from a column of a table: `… --in in.csv --column text --out out.parquet` adds a
    column of vectors, and `--out vectors.npy` writes only the vectors.
    """
    check_table_options(table, column, None, texts)
    is_array = table is None or out is None or out.suffix == ".npy"
    check_new_output(out, "vectors")
    if out is None and sys.stdout.isatty():
        raise UsageError("Vectors cannot be printed on a terminal. Add --out vectors.npy or > vectors.npy.")
    import numpy as np

    from seqloom.core.files import write_atomic
    from seqloom.predict.loader import load

    model, content = load(run, device), io.BytesIO()
    rows = None if table is None else TableFile(table, column, None if is_array else out, model, ["text"])
    stream, notes = sys.stdout.buffer, Notes("line" if rows is None else "row")
    lines = list(note_unknown(open_lines(texts, batch, None)[0] if rows is None else rows.texts, model, notes))
    vectors = model.embed(lines, pooling, normalize=normalize, batch_size=batch)
    np.save(content, vectors)
    if rows is not None and not is_array:
        rows.write_columns({"vector": vector} for vector in vectors.tolist())
    elif out is None:
        stream.write(content.getvalue())
    else:
        write_atomic(out, content.getvalue())
        print(f"{out} has {format_count(len(vectors), 'vector')} of {vectors.shape[1]} numbers.")
    notes.show()
    if blank := sum(not line.strip() for line in lines):
        print_notes([f"the vectors of {format_count(blank, 'blank line')} of {len(lines):,} are zero"])


def similar(
    run: TextRun,
    texts: Texts = None,
    query: Annotated[list[str] | None, typer.Option(help="A query. The option may be repeated.")] = None,
    query_file: Annotated[Path | None, typer.Option(help="A file with one query per line.")] = None,
    top: Annotated[int, top_option("Show this many lines for each query")] = 5,
    pooling: Pooling = "mean",
    as_json: Annotated[bool, json_option("One JSON object per query.")] = False,
    batch: Batch = BATCH_SIZE,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Find the lines most similar to a query: `seqloom similar runs/minilm --query "a funny film" < lines.txt`.

    With --in, the most similar rows of a table are written: `… --in in.csv --column text --out best.csv`.
    """
    check_table_options(table, column, out, texts, as_json=as_json)
    queries = check_unicode(query or [])
    if query_file is not None:
        queries = [*queries, *(line for line in read_file_lines(query_file, "one query") if line.strip())]
    if not queries and query_file is not None:
        raise DataError(f"{query_file} must contain one query per line, but all lines are blank.")
    if not queries:
        raise UsageError('Give a query: --query "…", or --query-file FILE with one query per line.')
    from seqloom.predict.loader import load

    model = load(run, device)
    rows = None if table is None else TableFile(table, column, out, model, ["text"])
    notes = Notes("line" if rows is None else "row")
    lines = note_unknown(open_lines(texts, batch, None)[0] if rows is None else rows.texts, model, notes)
    window = WINDOW_BATCHES * batch
    results = model.similar(queries, lines, top=top, pooling=pooling, batch_size=batch, window=window)
    if rows is not None:
        best = ((result.query, near) for result in results for near in result.best)
        rows.write_rows((near.line - 1, {"query": query, "cosine": near.score}) for query, near in best)
    for number, result in enumerate(results if rows is None else ()):
        if as_json:
            print_json({"query": result.query, "similar": result.best})
            continue
        if len(results) > 1:
            print("" if number == 0 else "\n", one_line(result.query), ":", sep="")
        for near in result.best:
            print(f"{near.score:z.4f}", near.line, one_line(near.text), sep="\t")
    for text in queries:
        if unknown := find_unknown_pieces(model, text):
            print_notes([f"the vocabulary lacks parts of the query {text!r}: {unknown[0]!r}"])
    notes.show()
    count, blank = results[0].texts, results[0].blank
    if not count:
        print_notes(["there are no lines to compare; give them on standard input: < lines.txt"])
    if blank:
        print_notes([f"blank lines are skipped: {blank:,} of {count + blank:,}"])


# --- words ----------------------------------------------------------------------------------------------------------


def load_words(run: Path) -> "WordSpace":
    """Open the word vectors of a run."""
    from seqloom.predict.loader import load
    from seqloom.predict.word_vectors import build_word_space

    return build_word_space(load(run, "cpu"))


def print_near(words: "Sequence[NearWord]") -> None:
    """Print words with their cosine similarities."""
    for near in words:
        print(f"{near.score:z.4f}", near.word, sep="\t")


@words.command("similar")
def similar_words(
    run: WordRun,
    word: Annotated[list[str], typer.Argument(help="One or more words.")],
    top: Annotated[int, top_option("Show this many neighbours for each word")] = 10,
    as_json: JsonObject = False,
) -> None:
    """List the nearest neighbours of a word: `seqloom words similar runs/word2vec-pydocs function`."""
    space = load_words(run)
    results = [(name, space.similar(name, top)) for name in word]
    if as_json:
        print_json({"run": str(run), "similar": [{"word": name, "best": near} for name, near in results]})
        return
    for number, (name, near) in enumerate(results):
        if len(results) > 1:
            print("" if number == 0 else "\n", name, ":", sep="")
        print_near(near)


@words.command("analogy")
def analogy(
    run: WordRun,
    a: Annotated[str, typer.Argument(help="Word A: A is to B as C is to …")],
    b: Annotated[str, typer.Argument(help="Word B.")],
    c: Annotated[str, typer.Argument(help="Word C.")],
    top: Annotated[int, top_option("Show this many answers")] = 5,
    as_json: JsonObject = False,
) -> None:
    """Solve an analogy, A is to B as C is to …: `seqloom words analogy runs/word2vec-wikitext2 man woman king`."""
    best = load_words(run).analogy(a, b, c, top)
    print_json({"run": str(run), "a": a, "b": b, "c": c, "best": best}) if as_json else print_near(best)


@words.command("plot")
def plot(
    run: WordRun,
    out: Annotated[Path, typer.Option(help="The .png or .svg file to write.")],
    method: Annotated[
        Literal["pca", "tsne"], typer.Option(help="Projection: pca preserves distances, tsne preserves neighbourhoods.")
    ] = "pca",
    word: Annotated[list[str] | None, typer.Option(help="Plot this word. The option may be repeated.")] = None,
    near: Annotated[
        list[str] | None, typer.Option(help="Plot this word and its nearest neighbours. The option may be repeated.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --near: number of neighbours; otherwise number of frequent words. [default: 12 or 150]"
        ),
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Skip this many of the most frequent words.")] = 0,
    font: Annotated[
        str | None, typer.Option(help="Font of the plot. [default: a font that has all characters]")
    ] = None,
) -> None:
    """Plot word vectors in two dimensions: `seqloom words plot runs/word2vec-pydocs --method tsne --out words.png`."""
    if word and near:
        raise UsageError("--word and --near cannot be used together; choose one.")
    from seqloom.inspect.plots.inputs import WordSelection, draw_words, select_frequent_words, select_neighbours

    check_plot_path(out)
    space = load_words(run)
    if near:
        chosen = select_neighbours(space, near, top or 12)
    elif word:
        names = list(dict.fromkeys(space.words[space.index(name)] for name in word))
        chosen = WordSelection(names, [-1] * len(names), [])
    else:
        chosen = select_frequent_words(space, top or 150, skip)
    write_plot(out, draw_words(space, chosen, method, f"Words of {run}", font))
    more = " …" if len(chosen.words) > SHOWN_WORDS else ""
    print(f"{len(chosen.words)} words: {' '.join(chosen.words[:SHOWN_WORDS])}{more}")


@words.command("import")
def import_file(
    file: Annotated[
        Path, typer.Argument(help="Vectors in the text or binary format of word2vec; the file may be compressed (.gz).")
    ],
    run: NewRun,
) -> None:
    """Import a file of word vectors in the format of word2vec, GloVe or fastText as a run."""
    check_import(file, run, "a file of vectors")
    from seqloom.predict.word_vectors import import_vectors

    space = import_vectors(file, run).space
    name = shlex.quote(str(run))
    print(f"Created {run}: {len(space.words):,} words, vectors of {space.vectors.shape[1]} numbers")
    print(f"Try: seqloom words similar {name} {shlex.quote(space.words[0])} · seqloom evaluate {name}")


@words.command("export")
def export_file(
    run: WordRun,
    file: NewFile,
    form: Annotated[
        Literal["text", "binary"] | None,
        typer.Option("--format", help="File format. [default: binary for .bin, else text]"),
    ] = None,
) -> None:
    """Export word vectors for other programs, or as `model.vectors.file` of a classifier or tagger."""
    check_new_file(file)
    from seqloom.predict.word_vectors import export_vectors

    is_binary = file.name.removesuffix(".gz").endswith(".bin")
    space = export_vectors(run, file, form or ("binary" if is_binary else "text"))
    print(f"Wrote {file}: {len(space.words):,} words, vectors of {space.vectors.shape[1]} numbers")
