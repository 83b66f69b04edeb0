"""`seqloom encodings`: one-hot, bag-of-words, tf–idf and dense encodings of texts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import check_unicode, note_path
from seqloom.cli._options import DataDir, JsonObject, PlotOut
from seqloom.cli._output import (
    Json,
    check_plot_path,
    make_table,
    open_wide_console,
    print_json,
    print_notes,
    write_plot,
)
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_count

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from seqloom.data.corpus import Example
    from seqloom.inspect.views.inputs import Comparison, Encoded, Vocabulary

MAX_ROWS = 20  # maximum number of printed words of a text, and of columns
MAX_WIDTH = 4096  # maximum number of printed components of a dense vector
MAX_PAIRS = 6  # maximum number of compared pairs of texts
MAX_CHARACTERS = 200  # maximum number of printed characters of a text
MAX_UNKNOWN = 8  # maximum number of printed unknown words
TITLES = {"one-hot": "one-hot", "counts": "bag of words", "tf-idf": "tf–idf", "dense": "dense"}
DESCRIPTIONS = {
    "one-hot": "One row per word, one column per word of the vocabulary, and one 1 in each row. The order is kept; "
    "all words have the same distance from each other.",
    "counts": "The count of each word: one row for the text, the sum of its one-hot rows. The order is lost.",
    "tf-idf": "Each count times ln((1 + N) / (1 + df)) + 1: a word in few of the N documents has a higher weight. "
    "The order is lost.",
    "dense": "One vector per word, a row of a learned table, in which similar words get similar vectors. The order "
    "is kept. Here the table is random, as at the beginning of training.",
}


def encodings(
    texts: Annotated[list[str], typer.Argument(help="Texts; two or more are compared.")],
    corpus: Annotated[
        str | None,
        typer.Option(help="Corpus (`seqloom list corpora`) or text file in which words are counted."),
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="A vocabulary: a file with one word per line, or the tokenizer.json of a run.")
    ] = None,
    width: Annotated[str, typer.Option(help="Sizes of dense vectors, separated by commas.")] = "8,16,32",
    keep_case: Annotated[bool, typer.Option("--keep-case", help="Distinguish upper and lower case.")] = False,
    out: PlotOut = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Compare one-hot, bag-of-words, tf-idf and embedding encodings: `seqloom encodings "the market falls"`."""
    try:
        widths = list(dict.fromkeys(int(word) for word in width.split(",")))
    except ValueError:
        widths = []
    if not widths or not all(1 <= number <= MAX_WIDTH for number in widths):
        raise UsageError(
            f"--width must be numbers from 1 to {MAX_WIDTH}, separated by commas, such as 8,16,32; got {width!r}."
        )
    if corpus is not None and vocabulary is not None:
        raise UsageError("--corpus and --vocabulary cannot be used together; choose one.")
    note_path(check_unicode(texts), reads_files=False)
    check_plot_path(out)
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.figures import choose_fonts
    from seqloom.inspect.plots.inputs import draw_encodings, list_drawn_words
    from seqloom.inspect.views.inputs import compare, encode

    with use_data_folder(data_dir):
        known = load_vocabulary(texts, corpus, vocabulary, keep_case)
    encoded = encode(texts, known)
    pairs = islice(combinations(range(len(texts)), 2), MAX_PAIRS)
    compared = [compare(encoded, first, second, widths[0]) for first, second in pairs]
    if unknown := list(dict.fromkeys(word for encoding in encoded for word in encoding.unknown())):
        listed = ", ".join(unknown[:MAX_UNKNOWN]) + (" …" if len(unknown) > MAX_UNKNOWN else "")
        print_notes([f"not in the vocabulary, so encoded as the same word: {listed}"])
    if known.documents == 1:
        print_notes(["tf–idf equals the counts, since there is only one document; add texts or --corpus"])
    if out is not None:  # write the plot before printing, because `… | head` may interrupt printing
        write_plot(out, draw_encodings(encoded, widths[0]), True, choose_fonts(list_drawn_words(encoded)).warning())
    if as_json:
        print_json(encodings_to_json(encoded, known, widths, compared))
    else:
        print_encodings(encoded, known, widths, compared)


# --- vocabulary -----------------------------------------------------------------------------------------------------


def load_vocabulary(texts: list[str], corpus: str | None, file: Path | None, keep_case: bool) -> "Vocabulary":
    """Load the vocabulary of a file or a corpus; by default, build it from the texts."""
    from seqloom.data.files import read_lines
    from seqloom.inspect.views.inputs import splitter, vocabulary_from_list, vocabulary_of, vocabulary_of_tokenizer
    from seqloom.text import tokenizer_from_json

    if file is None and corpus is None:
        source = "the text" if len(texts) == 1 else f"these {len(texts)} texts"
        return vocabulary_of(texts, source, splitter(keep_case), unknown=False)
    if file is None:
        name, documents = load_documents(str(corpus))
        return vocabulary_of(documents, f"{name}, {len(documents):,} documents", splitter(keep_case))
    file = file / "tokenizer.json" if file.is_dir() else file
    lines = read_lines(file)
    if file.suffix != ".json":
        words = [word if keep_case else word.lower() for line in lines if (word := line.strip())]
        return vocabulary_from_list(words, str(file), texts, splitter(keep_case))
    if keep_case:
        raise UsageError(
            "--keep-case applies only to lists of words; leave it out for a tokenizer, whose file defines the case."
        )
    try:
        value = json.loads("\n".join(lines))
    except json.JSONDecodeError as error:
        raise DataError(f"{file} must be a tokenizer in JSON, but it cannot be parsed: {error}.") from None
    return vocabulary_of_tokenizer(tokenizer_from_json(value), f"the tokenizer {file}", texts)


def load_documents(corpus: str) -> tuple[str, list[str]]:
    """Return the lines of a file, or the training texts of a corpus (the sources of sentence pairs)."""
    from seqloom.config import build
    from seqloom.data import corpora
    from seqloom.data.corpora.text import read_documents

    if corpus not in corpora.CORPORA and Path(corpus).exists():
        return corpus, read_documents(Path(corpus), "line")
    module = corpora.find(corpus)
    if any(field.default is MISSING and field.default_factory is MISSING for field in fields(module.Config)):
        raise UsageError(f"The corpus {corpus} has no files of its own. Name your file instead: --corpus FILE.")
    loaded = module.load(build(module.Config, {"corpus": corpus}, source=f"corpus {corpus}"))
    return f"corpus {corpus}, train", [get_text(example) for example in loaded.split("train")]


def get_text(example: "str | Example") -> str:
    """Return a document or the text of an example (the source of a pair)."""
    return example if isinstance(example, str) else example.texts()[0]


# --- output ---------------------------------------------------------------------------------------------------------


def encodings_to_json(
    encoded: Sequence["Encoded"], known: "Vocabulary", widths: list[int], compared: Sequence["Comparison"]
) -> Json:
    """Return the encodings of all texts as JSON values."""
    from seqloom.inspect.views.inputs import dense_table, nonzero_columns

    tables = {width: dense_table(known, width) for width in widths}
    words = [
        {
            "column": column,
            "word": known.words[column],
            "documents": known.frequency[column],
            "idf": float(known.idf[column]),
            "dense": {width: table[column] for width, table in tables.items()},
        }
        for column in nonzero_columns(encoded)
    ]
    texts = [
        {
            "text": encoding.text,
            "words": [word.text for word in encoding.words],
            "one_hot": encoding.columns,
            "counts": encoding.counts,
            "tf_idf": encoding.tf_idf,
            "sizes": [{**size._asdict(), "numbers": size.numbers} for size in encoding.sizes(widths)],
        }
        for encoding in encoded
    ]
    comparisons = [
        {
            "texts": [comparison.first + 1, comparison.second + 1],
            "one_hot": {
                "same": comparison.first_difference is None,
                "differs_at": None if comparison.first_difference is None else comparison.first_difference + 1,
            },
            "counts": {"same": comparison.same_counts, "cosine": comparison.counts},
            "tf_idf": {"same": comparison.same_counts, "cosine": comparison.tf_idf},
            "dense_mean": {"same": comparison.same_mean, "distance": comparison.mean},
            "recurrent": {"same": comparison.same_state, "distance": comparison.state},
        }
        for comparison in compared
    ]
    source = {"size": len(known), "source": known.source, "documents": known.documents}
    return {"vocabulary": source, "words": words, "texts": texts, "comparisons": comparisons}


def print_encodings(
    encoded: Sequence["Encoded"], known: "Vocabulary", widths: list[int], compared: Sequence["Comparison"]
) -> None:
    """Print the encodings of all texts, their sizes and their differences."""
    from seqloom.inspect.plots.figures import format_word
    from seqloom.inspect.views.inputs import nonzero_columns

    console = open_wide_console(120)
    shown = nonzero_columns(encoded, MAX_ROWS)
    names = [f"text {number}" if len(encoded) > 1 else "the text" for number in range(1, len(encoded) + 1)]
    for name, encoding in zip(names, encoded, strict=True):
        text = " ".join(format_word(word) for word in encoding.text[: MAX_CHARACTERS + 1].split())
        text = text if len(encoding.text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"
        console.print(f"{name}: {text}  ({format_count(len(encoding.words), 'word')})", markup=False, soft_wrap=True)
    others = len(known) - len(shown)
    zero = ", all 0 here" if nonzero_columns(encoded) == shown else ""
    hidden = f"; {format_count(others, 'column')} not shown{zero}" if others else ""
    source = f"vocabulary: {format_count(len(known), 'word')}, from {known.source}{hidden}"
    console.print(source, markup=False, soft_wrap=True)
    for kind in TITLES:
        print_encoding(console, kind, dict(zip(names, encoded, strict=True)), known, shown, widths[0])
    print_sizes(console, encoded[0], widths, names[0])
    for pair in compared:
        print_comparison(console, pair, encoded)


def print_encoding(
    console: "Console", kind: str, texts: Mapping[str, "Encoded"], known: "Vocabulary", columns: list[int], width: int
) -> None:
    """Print one kind of encoding of each named text: the given columns, or `width` numbers of a dense vector."""
    import numpy as np

    from seqloom.inspect.views.inputs import dense_table

    heads = [known.words[column] for column in columns]
    console.print(f"\n{TITLES[kind]}", style="bold")
    console.print(DESCRIPTIONS[kind], markup=False)
    if kind == "one-hot":
        for name, encoding in texts.items():
            rows = [word.text for word in encoding.words[:MAX_ROWS]]
            title = name if len(texts) > 1 else ""
            print_matrix(console, title, rows, heads, encoding.one_hot(columns)[:MAX_ROWS], "{:.0f}")
            if len(encoding.words) > MAX_ROWS:
                console.print(f"… and {len(encoding.words) - MAX_ROWS:,} more rows")
    elif kind == "dense":
        numbers = [str(number) for number in range(1, width + 1)][:MAX_ROWS]
        title = f"the first {MAX_ROWS} of {width} numbers" if width > MAX_ROWS else ""
        print_matrix(console, title, heads, numbers, dense_table(known, width)[columns, :MAX_ROWS], "{:.2f}")
    else:
        bags = [encoding.counts if kind == "counts" else encoding.tf_idf for encoding in texts.values()]
        values = np.array([[bag.get(column, 0.0) for column in columns] for bag in bags], dtype=float)
        print_matrix(console, "", list(texts), heads, values, "{:.0f}" if kind == "counts" else "{:.2f}")


def print_matrix(
    console: "Console", title: str, rows: list[str], columns: list[str], values: "np.ndarray", form: str
) -> None:
    """Print a matrix with headings; on a console with colours, the largest values are coloured."""
    from seqloom.inspect.plots.figures import format_word
    from seqloom.inspect.plots.terminal import render_heat_map

    def format_label(head: str) -> str:
        """Replace the spaces of tokens by visible marks; headings keep their spaces."""
        return head if head.startswith(("text ", "the text")) else format_word(head)

    colour = console.color_system is not None and not console.no_color
    shades = abs(values) / max(float(abs(values).max()), 1.0)
    numbers = [[form.format(value) for value in row] for row in values]
    if title:
        console.print(title, style="dim")
    shown = render_heat_map(
        rows, columns, shades, width=console.width, colour=colour, numbers=numbers, format_label=format_label
    )
    console.print(shown, end="", crop=False)


def print_sizes(console: "Console", encoding: "Encoded", widths: list[int], name: str) -> None:
    """Print the size of each encoding for this vocabulary and for larger vocabularies."""
    from seqloom.inspect.views.inputs import LARGE_VOCABULARIES

    console.print(f"\nsize of {name}, in numbers", style="bold")
    large = (f"{size:,} words" for size in LARGE_VOCABULARIES)
    table = make_table(["", "shape", "numbers", "nonzero", *large, "learned", "order"])
    larger = [encoding.sizes(widths, size) for size in LARGE_VOCABULARIES]
    for here, *there in zip(encoding.sizes(widths), *larger, strict=True):
        table.add_row(
            TITLES[here.encoding] + (f", {here.shape[-1]}" if here.encoding == "dense" else ""),
            " × ".join(f"{size:,}" for size in here.shape),
            f"{here.numbers:,}",
            f"{here.nonzero:,}",
            *(f"{size.numbers:,}" for size in there),
            f"{len(encoding.vocabulary):,} × {here.shape[-1]:,}" if here.parameters else "none",
            "kept" if len(here.shape) > 1 else "lost",
        )
    console.print(table)
    console.print(
        "10,000 words: the size with a vocabulary of 10,000 words. "
        "learned: the shape of the embedding matrix, which all texts share.",
        style="dim",
    )


def print_comparison(console: "Console", comparison: "Comparison", encoded: Sequence["Encoded"]) -> None:
    """Print which encodings distinguish two texts."""
    from seqloom.inspect.plots.terminal import format_inline

    console.print(f"\nare text {comparison.first + 1} and text {comparison.second + 1} distinguishable?", style="bold")
    position = comparison.first_difference
    if position is None:
        order = "no: the same words in the same order"
    else:
        texts = [encoded[comparison.first].words, encoded[comparison.second].words]
        pair = [format_inline(words[position].text) if position < len(words) else "the end" for words in texts]
        order = f"yes: word {position + 1:,} differs ({pair[0]}, {pair[1]})"
    same = "no: the word counts are equal, so no model can distinguish them by this encoding"
    if comparison.same_state:
        state = "no" if position is None else "no: the difference is lost in the state"
    else:
        state = f"yes: distance {comparison.state:.3g} between the last states, untrained"
    rows = {
        "one-hot, in order": order,
        "bag of words": same if comparison.same_counts else f"yes: cosine {comparison.counts:.3f}",
        "tf–idf": same if comparison.same_counts else f"yes: cosine {comparison.tf_idf:.3f}",
        "mean of dense vectors": same if comparison.same_mean else f"yes: distance {comparison.mean:.3f}",
        "dense, read by a recurrent network": state,
    }
    for name, answer in rows.items():
        console.print(f"  {name:34} {answer}", markup=False, soft_wrap=True)
