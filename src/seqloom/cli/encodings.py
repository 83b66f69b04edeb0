"""Words as numbers: one-hot, bag of words, tf–idf and dense, side by side."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._input import arguments, note_place
from seqloom.cli._options import DataDir, JsonObject, PictureOut
from seqloom.cli._output import check_out, plain_table, print_json, wide_console, write_picture
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from seqloom.inspect.views.inputs import Comparison, Encoded, Vocabulary

ROWS = 20  # words of a text, and columns, that are shown
WIDEST = 4096  # numbers of a dense vector
PAIRS = 6  # of texts that are compared
NAMES = {"one-hot": "one-hot", "counts": "bag of words", "tf-idf": "tf–idf", "dense": "dense"}
ABOUT = {
    "one-hot": "A row for each word, a column for each word of the vocabulary, and a single 1. The order is kept; any "
    "two words are equally far apart.",
    "counts": "How often each word occurs: one row for the whole text, the sum of its one-hot rows. The order is lost.",
    "tf-idf": "The counts, each times ln((1 + N) / (1 + df)) + 1: a word that few of the N documents have weighs more. "
    "The order is lost.",
    "dense": "A few numbers for each word, looked up in a table that is learned, so that similar words come to lie "
    "close. The order is kept. Here they are drawn by lot, as a model begins with them.",
}


def encodings(
    texts: Annotated[list[str], typer.Argument(help="Texts; two or more are compared.")],
    corpus: Annotated[
        str | None,
        typer.Option(help="Words and their frequency from a corpus (`seqloom list corpora`) or a text file."),
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="Words from a file, one a line, or the tokens of a run (its tokenizer.json).")
    ] = None,
    width: Annotated[str, typer.Option(help="How many numbers a dense vector has, with commas.")] = "8,16,32",
    keep_case: Annotated[bool, typer.Option("--keep-case", help="Bear and bear are two words.")] = False,
    out: PictureOut = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Words as numbers, four ways, and how large they are: `seqloom encodings "the market falls"`."""
    widths = _widths(width)
    if corpus is not None and vocabulary is not None:
        raise UsageError("Words come either from a --corpus or from a --vocabulary, not from both.")
    arguments(texts)
    note_place(texts, reads=False)
    check_out(out)
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.views.inputs import compare, encode

    with use_data_folder(data_dir):
        known = _vocabulary(texts, corpus, vocabulary, keep_case)
    encoded = encode(texts, known)
    pairs = list(islice(combinations(range(len(texts)), 2), PAIRS))
    compared = [compare(encoded, first, second, widths[0]) for first, second in pairs]
    for note in _notes(encoded, known):
        typer.echo(f"note: {note}", err=True)
    if out is not None:  # first, so that `… | head` has it too
        _draw(out, encoded, widths[0])
    print_json(_object(encoded, known, widths, compared)) if as_json else _print(encoded, known, widths, compared)


def _widths(words: str) -> list[int]:
    try:
        found = [int(word) for word in words.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= number <= WIDEST for number in found):
        raise UsageError(f"--width takes numbers from 1 to {WIDEST} with commas between, like 8,16,32; got {words!r}.")
    return list(dict.fromkeys(found))


# --- where the words come from --------------------------------------------------------------------------------------


def _vocabulary(texts: list[str], corpus: str | None, file: Path | None, keep_case: bool) -> "Vocabulary":
    from seqloom.inspect.views.inputs import splitter, vocabulary_of

    if file is not None:
        return _from_file(file, texts, keep_case)
    if corpus is not None:
        name, documents = _documents(corpus)
        return vocabulary_of(documents, f"{name}, {len(documents):,} documents", splitter(keep_case))
    source = "the text itself" if len(texts) == 1 else f"these {len(texts)} texts"
    return vocabulary_of(texts, source, splitter(keep_case), unknown=False)


def _from_file(file: Path, texts: list[str], keep_case: bool) -> "Vocabulary":
    """The words of a list, or the tokens of a tokenizer: its file, or the run that has it."""
    from seqloom.data.files import read_lines
    from seqloom.inspect.views.inputs import splitter, vocabulary_from_list

    file = file / "tokenizer.json" if file.is_dir() else file
    lines = read_lines(file)
    if file.suffix == ".json":
        if keep_case:
            raise UsageError("--keep-case is for lists of words; a tokenizer knows by itself what to do with capitals.")
        return _from_tokenizer(file, "\n".join(lines), texts)
    words = [word if keep_case else word.lower() for line in lines if (word := line.strip())]
    return vocabulary_from_list(words, str(file), texts, splitter(keep_case))


def _from_tokenizer(file: Path, content: str, texts: list[str]) -> "Vocabulary":
    from seqloom.inspect.views.inputs import vocabulary_of_tokenizer
    from seqloom.text import tokenizer_from_json

    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        raise DataError(f"{file} must be the JSON of a tokenizer, and is none: {error}.") from None
    return vocabulary_of_tokenizer(tokenizer_from_json(value), f"the tokenizer {file}", texts)


def _documents(corpus: str) -> tuple[str, list[str]]:
    """The training texts of a corpus, or the lines of a file that is none."""
    from seqloom.config import build
    from seqloom.data import corpora

    if corpus not in corpora.CORPORA and Path(corpus).exists():
        from seqloom.data.corpora.text import read_documents

        return corpus, read_documents(Path(corpus), "line")
    module = corpora.find(corpus)
    if any(field.default is MISSING and field.default_factory is MISSING for field in fields(module.Config)):
        raise UsageError(f"The corpus {corpus} is of files of one's own. Name the file instead: --corpus FILE.")
    found = module.load(build(module.Config, {"corpus": corpus}, source=f"corpus {corpus}"))
    return f"corpus {corpus}, train", [_text(example) for example in found.split("train")]


def _text(example: Any) -> str:
    """A document, or the text of an example: of a pair, the source."""
    found: str = (
        example if isinstance(example, str) else getattr(example, "text" if hasattr(example, "text") else "source")
    )
    return found


def _notes(encoded: Sequence["Encoded"], known: "Vocabulary") -> Iterator[str]:
    unknown = list(dict.fromkeys(word for one in encoded for word in one.unknown()))
    if unknown:
        few = ", ".join(unknown[:8]) + (" …" if len(unknown) > 8 else "")
        yield f"not in the vocabulary, so all the same word to it: {few}"
    if known.documents == 1:
        yield "a single document has every word, so tf–idf equals the counts; give more texts, or --corpus"


# --- for programs ---------------------------------------------------------------------------------------------------


def _object(
    encoded: Sequence["Encoded"], known: "Vocabulary", widths: list[int], compared: Sequence["Comparison"]
) -> dict[str, Any]:
    from seqloom.inspect.views.inputs import dense_table, occurring

    columns = occurring(encoded)
    tables = {width: dense_table(known, width) for width in widths}
    words = [
        {
            "column": column,
            "word": known.words[column],
            "documents": known.frequency[column],
            "idf": float(known.idf[column]),
            "dense": {str(width): table[column].tolist() for width, table in tables.items()},
        }
        for column in columns
    ]
    return {
        "vocabulary": {"size": len(known), "source": known.source, "documents": known.documents},
        "words": words,
        "texts": [
            {
                "text": one.text,
                "words": [word.text for word in one.words],
                "one_hot": one.columns,
                "counts": {str(column): count for column, count in one.counts.items()},
                "tf_idf": {str(column): value for column, value in one.tf_idf.items()},
                "sizes": [{**size._asdict(), "numbers": size.numbers} for size in one.sizes(widths)],
            }
            for one in encoded
        ],
        "comparisons": [_compared(one) for one in compared],
    }


def _compared(one: "Comparison") -> dict[str, Any]:
    return {
        "texts": [one.first + 1, one.second + 1],
        "one_hot": {"same": one.place is None, "differs_at": None if one.place is None else one.place + 1},
        "counts": {"same": one.same_counts, "cosine": one.counts},
        "tf_idf": {"same": one.same_counts, "cosine": one.tf_idf},
        "dense_mean": {"same": one.same_mean, "distance": one.mean},
        "recurrent": {"same": one.same_state, "distance": one.state},
    }


# --- for people -----------------------------------------------------------------------------------------------------


def _print(
    encoded: Sequence["Encoded"], known: "Vocabulary", widths: list[int], compared: Sequence["Comparison"]
) -> None:
    from seqloom.inspect.views.inputs import occurring

    console = wide_console(120)
    columns = occurring(encoded, ROWS)
    names = [f"text {number}" if len(encoded) > 1 else "the text" for number in range(1, len(encoded) + 1)]
    for name, one in zip(names, encoded, strict=True):
        console.print(f"{name}: {_cut(one.text)}  ({counted(len(one.words), 'word')})", markup=False, soft_wrap=True)
    others = len(known) - len(columns)
    rest = f"; {counted(others, 'column')} not shown" + ", all 0 here" * (occurring(encoded) == columns)
    said = f"vocabulary: {counted(len(known), 'word')}, from {known.source}{rest if others else ''}"
    console.print(said, markup=False, soft_wrap=True)
    _print_matrices(console, encoded, known, columns, names, widths[0])
    _print_sizes(console, encoded[0], widths, names[0])
    for pair in compared:
        _print_comparison(console, pair, encoded)


def _print_matrices(
    console: "Console",
    encoded: Sequence["Encoded"],
    known: "Vocabulary",
    columns: list[int],
    names: list[str],
    width: int,
) -> None:
    import numpy as np

    from seqloom.inspect.views.inputs import dense_table

    heads = [known.words[column] for column in columns]
    _head(console, "one-hot")
    for name, one in zip(names, encoded, strict=True):
        sides = [word.text for word in one.words[:ROWS]]
        _matrix(console, name if len(encoded) > 1 else "", sides, heads, one.one_hot(columns)[:ROWS], "{:.0f}")
        if len(one.words) > ROWS:
            console.print(f"… and {len(one.words) - ROWS:,} more rows")
    for kind, form in (("counts", "{:.0f}"), ("tf-idf", "{:.2f}")):
        _head(console, kind)
        bags: list[Mapping[int, float]] = [one.counts if kind == "counts" else one.tf_idf for one in encoded]
        values = np.array([[bag.get(column, 0.0) for column in columns] for bag in bags], dtype=float)
        _matrix(console, "", names, heads, values, form)
    _head(console, "dense")
    numbers = [str(number) for number in range(1, width + 1)][:ROWS]
    some = f"the first {ROWS} of {width} numbers" if width > ROWS else ""
    _matrix(console, some, heads, numbers, dense_table(known, width)[columns, :ROWS], "{:.2f}")


def _head(console: "Console", kind: str) -> None:
    console.print(f"\n{NAMES[kind]}", style="bold")
    console.print(ABOUT[kind], markup=False)


def _matrix(console: "Console", title: str, rows: list[str], columns: list[str], values: Any, form: str) -> None:
    """Numbers under their heads; the largest are the brightest, where there are colours."""
    from seqloom.inspect.plots.terminal import heat_map

    colour = console.color_system is not None and not console.no_color
    largest = max(float(abs(values).max()), 1.0)
    numbers = [[form.format(value) for value in row] for row in values]
    if title:
        console.print(title, style="dim")
    shown = heat_map(
        rows, columns, abs(values) / largest, width=console.width, colour=colour, numbers=numbers, spell=_spell
    )
    console.print(shown, end="", crop=False)


def _spell(head: str) -> str:
    """The names we gave have spaces; tokens that have some must be seen to."""
    from seqloom.inspect.plots.figures import label

    return head if head.startswith(("text ", "the text")) else label(head)


def _print_sizes(console: "Console", one: "Encoded", widths: list[int], name: str) -> None:
    from seqloom.inspect.views.inputs import LARGE

    console.print(f"\nhow large {name} is, in numbers", style="bold")
    large = (f"of {size:,} words" for size in LARGE)
    table = plain_table(["", "shape", "numbers", "not 0", *large, "learned", "order"])
    larger = [one.sizes(widths, size) for size in LARGE]
    for here, *there in zip(one.sizes(widths), *larger, strict=True):
        width = f", {here.shape[-1]}" if here.encoding == "dense" else ""
        table.add_row(
            NAMES[here.encoding] + width,
            " × ".join(f"{size:,}" for size in here.shape),
            f"{here.numbers:,}",
            f"{here.not_zero:,}",
            *(f"{size.numbers:,}" for size in there),
            f"{len(one.vocabulary):,} × {here.shape[-1]:,}" if here.table else "nothing",
            "kept" if len(here.shape) > 1 else "lost",
        )
    console.print(table)
    console.print(
        "of 10,000 words: what the same text takes where the vocabulary has as many; learned: the table, once for all",
        style="dim",
    )


def _print_comparison(console: "Console", one: "Comparison", encoded: Sequence["Encoded"]) -> None:
    from seqloom.inspect.plots.terminal import beside

    console.print(f"\ncan text {one.first + 1} and text {one.second + 1} be told apart?", style="bold")
    texts = encoded[one.first], encoded[one.second]
    if one.place is None:
        order = "no: the same words in the same order"
    else:
        pair = [beside(own.words[one.place].text) if one.place < len(own.words) else "the end" for own in texts]
        order = f"yes: at word {one.place + 1:,}, {pair[0]} and {pair[1]}"
    same = "no: the same words as often, so no model can that reads only these"
    rows = [
        ("one-hot, in order", order),
        ("bag of words", same if one.same_counts else f"yes: cosine {one.counts:.3f}"),
        ("tf–idf", same if one.same_counts else f"yes: cosine {one.tf_idf:.3f}"),
        ("mean of dense vectors", same if one.same_mean else f"yes: {one.mean:.3f} apart"),
        ("dense, read by a recurrent network", _read(one)),
    ]
    for name, answer in rows:
        console.print(f"  {name:34} {answer}", markup=False, soft_wrap=True)


def _read(one: "Comparison") -> str:
    if one.same_state:
        return "no" if one.place is None else "no: it has forgotten what was different"
    return f"yes: its last states, untrained, are {one.state:.3g} apart"


def _draw(out: Path, encoded: Sequence["Encoded"], width: int) -> None:
    from seqloom.inspect.plots.figures import fonts_for
    from seqloom.inspect.plots.inputs import draw_encodings, drawn_words

    complaint = fonts_for(drawn_words(encoded)).complaint()
    if complaint and out.suffix.lower() == ".png":
        typer.echo(f"note: {complaint}.", err=True)
    write_picture(out, draw_encodings(encoded, width), text_stays_text=True)


def _cut(text: str, most: int = 200) -> str:
    from seqloom.inspect.plots.figures import label

    shown = " ".join(label(word) for word in text[: most + 1].split())
    return shown if len(text) <= most else shown[:most] + "…"
