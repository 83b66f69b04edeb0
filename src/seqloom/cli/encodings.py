"""Words as numbers: one-hot, bag of words, tf–idf and dense, side by side."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import arguments, note_place
from seqloom.cli._options import DataDir, JsonObject, PictureOut
from seqloom.cli._output import Json, check_out, plain_table, print_json, print_notes, wide_console, write_picture
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import format_count

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from seqloom.data.corpus import Example
    from seqloom.inspect.views.inputs import Comparison, Encoded, Vocabulary

ROWS = 20  # words of a text, and columns, that are shown
WIDEST = 4096  # numbers of a dense vector
PAIRS = 6  # of texts that are compared
SHOWN_LETTERS = 200  # of a text
SHOWN_UNKNOWN = 8  # words
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
        typer.Option(help="Count words in a corpus (`seqloom list corpora`) or a text file."),
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="A vocabulary: a file with one word per line, or a tokenizer.json of a run.")
    ] = None,
    width: Annotated[str, typer.Option(help="Sizes of dense vectors, separated by commas.")] = "8,16,32",
    keep_case: Annotated[bool, typer.Option("--keep-case", help="Distinguish upper and lower case.")] = False,
    out: PictureOut = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
) -> None:
    """Compare one-hot, bag-of-words, tf-idf and embedding encodings: `seqloom encodings "the market falls"`."""
    try:
        widths = list(dict.fromkeys(int(word) for word in width.split(",")))
    except ValueError:
        widths = []
    if not widths or not all(1 <= number <= WIDEST for number in widths):
        raise UsageError(f"--width takes numbers from 1 to {WIDEST} with commas between, like 8,16,32; got {width!r}.")
    if corpus is not None and vocabulary is not None:
        raise UsageError("Words come either from a --corpus or from a --vocabulary, not from both.")
    note_place(arguments(texts), reads=False)
    check_out(out)
    from seqloom.data.files import use_data_folder
    from seqloom.inspect.plots.figures import choose_fonts
    from seqloom.inspect.plots.inputs import draw_encodings, list_drawn_words
    from seqloom.inspect.views.inputs import compare, encode

    with use_data_folder(data_dir):
        known = load_vocabulary(texts, corpus, vocabulary, keep_case)
    encoded = encode(texts, known)
    pairs = islice(combinations(range(len(texts)), 2), PAIRS)
    compared = [compare(encoded, first, second, widths[0]) for first, second in pairs]
    if unknown := list(dict.fromkeys(word for one in encoded for word in one.unknown())):
        few = ", ".join(unknown[:SHOWN_UNKNOWN]) + (" …" if len(unknown) > SHOWN_UNKNOWN else "")
        print_notes([f"not in the vocabulary, so all the same word to it: {few}"])
    if known.documents == 1:
        print_notes(["a single document has every word, so tf–idf equals the counts; give more texts, or --corpus"])
    if out is not None:  # first, so that `… | head` has it too
        write_picture(out, draw_encodings(encoded, widths[0]), True, choose_fonts(list_drawn_words(encoded)).warning())
    if as_json:
        print_json(encodings_json(encoded, known, widths, compared))
    else:
        print_encodings(encoded, known, widths, compared)


# --- where the words come from --------------------------------------------------------------------------------------


def load_vocabulary(texts: list[str], corpus: str | None, file: Path | None, keep_case: bool) -> "Vocabulary":
    """Return the words of a file, of a corpus, or else of the texts themselves."""
    from seqloom.data.files import read_lines
    from seqloom.inspect.views.inputs import splitter, vocabulary_from_list, vocabulary_of, vocabulary_of_tokenizer
    from seqloom.text import tokenizer_from_json

    if file is None and corpus is None:
        source = "the text itself" if len(texts) == 1 else f"these {len(texts)} texts"
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
        raise UsageError("--keep-case is for lists of words; a tokenizer knows by itself what to do with capitals.")
    try:
        value = json.loads("\n".join(lines))
    except json.JSONDecodeError as error:
        raise DataError(f"{file} must be the JSON of a tokenizer, and is none: {error}.") from None
    return vocabulary_of_tokenizer(tokenizer_from_json(value), f"the tokenizer {file}", texts)


def load_documents(corpus: str) -> tuple[str, list[str]]:
    """Return the training texts of a corpus, of pairs the sources, or the lines of a file that is none."""
    from seqloom.config import build
    from seqloom.data import corpora
    from seqloom.data.corpora.text import read_documents

    if corpus not in corpora.CORPORA and Path(corpus).exists():
        return corpus, read_documents(Path(corpus), "line")
    module = corpora.find(corpus)
    if any(field.default is MISSING and field.default_factory is MISSING for field in fields(module.Config)):
        raise UsageError(f"The corpus {corpus} is of files of one's own. Name the file instead: --corpus FILE.")
    loaded = module.load(build(module.Config, {"corpus": corpus}, source=f"corpus {corpus}"))
    return f"corpus {corpus}, train", [text_of(example) for example in loaded.split("train")]


def text_of(example: "str | Example") -> str:
    """Return a document, or the text of an example: of a pair, the source."""
    return example if isinstance(example, str) else example.texts()[0]


# --- output ---------------------------------------------------------------------------------------------------------


def encodings_json(
    encoded: Sequence["Encoded"], known: "Vocabulary", widths: list[int], compared: Sequence["Comparison"]
) -> Json:
    """Return the encodings of all texts as values that JSON has."""
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
            "text": one.text,
            "words": [word.text for word in one.words],
            "one_hot": one.columns,
            "counts": one.counts,
            "tf_idf": one.tf_idf,
            "sizes": [{**size._asdict(), "numbers": size.numbers} for size in one.sizes(widths)],
        }
        for one in encoded
    ]
    comparisons = [
        {
            "texts": [one.first + 1, one.second + 1],
            "one_hot": {
                "same": one.first_difference is None,
                "differs_at": None if one.first_difference is None else one.first_difference + 1,
            },
            "counts": {"same": one.same_counts, "cosine": one.counts},
            "tf_idf": {"same": one.same_counts, "cosine": one.tf_idf},
            "dense_mean": {"same": one.same_mean, "distance": one.mean},
            "recurrent": {"same": one.same_state, "distance": one.state},
        }
        for one in compared
    ]
    source = {"size": len(known), "source": known.source, "documents": known.documents}
    return {"vocabulary": source, "words": words, "texts": texts, "comparisons": comparisons}


def print_encodings(
    encoded: Sequence["Encoded"], known: "Vocabulary", widths: list[int], compared: Sequence["Comparison"]
) -> None:
    """Print each encoding of all texts, their sizes, and whether they can be told apart."""
    import numpy as np

    from seqloom.inspect.plots.figures import format_word
    from seqloom.inspect.views.inputs import dense_table, nonzero_columns

    console = wide_console(120)
    shown, width = nonzero_columns(encoded, ROWS), widths[0]
    heads = [known.words[column] for column in shown]
    names = [f"text {number}" if len(encoded) > 1 else "the text" for number in range(1, len(encoded) + 1)]
    for name, one in zip(names, encoded, strict=True):
        text = " ".join(format_word(word) for word in one.text[: SHOWN_LETTERS + 1].split())
        text = text if len(one.text) <= SHOWN_LETTERS else text[:SHOWN_LETTERS] + "…"
        console.print(f"{name}: {text}  ({format_count(len(one.words), 'word')})", markup=False, soft_wrap=True)
    others = len(known) - len(shown)
    rest = f"; {format_count(others, 'column')} not shown" + ", all 0 here" * (nonzero_columns(encoded) == shown)
    source = f"vocabulary: {format_count(len(known), 'word')}, from {known.source}{rest if others else ''}"
    console.print(source, markup=False, soft_wrap=True)
    for kind in NAMES:
        console.print(f"\n{NAMES[kind]}", style="bold")
        console.print(ABOUT[kind], markup=False)
        if kind == "one-hot":
            for name, one in zip(names, encoded, strict=True):
                sides = [word.text for word in one.words[:ROWS]]
                title = name if len(encoded) > 1 else ""
                print_matrix(console, title, sides, heads, one.one_hot(shown)[:ROWS], "{:.0f}")
                if len(one.words) > ROWS:
                    console.print(f"… and {len(one.words) - ROWS:,} more rows")
        elif kind == "dense":
            numbers = [str(number) for number in range(1, width + 1)][:ROWS]
            title = f"the first {ROWS} of {width} numbers" if width > ROWS else ""
            print_matrix(console, title, heads, numbers, dense_table(known, width)[shown, :ROWS], "{:.2f}")
        else:
            bags = [one.counts if kind == "counts" else one.tf_idf for one in encoded]
            values = np.array([[bag.get(column, 0.0) for column in shown] for bag in bags], dtype=float)
            print_matrix(console, "", names, heads, values, "{:.0f}" if kind == "counts" else "{:.2f}")
    print_sizes(console, encoded[0], widths, names[0])
    for pair in compared:
        print_comparison(console, pair, encoded)


def print_matrix(
    console: "Console", title: str, rows: list[str], columns: list[str], values: "np.ndarray", form: str
) -> None:
    """Print numbers under their heads; the largest are the brightest, where there are colours."""
    from seqloom.inspect.plots.figures import format_word
    from seqloom.inspect.plots.terminal import render_heat_map

    def spell(head: str) -> str:
        """The names we gave have spaces; tokens that have some must be seen to."""
        return head if head.startswith(("text ", "the text")) else format_word(head)

    colour = console.color_system is not None and not console.no_color
    shades = abs(values) / max(float(abs(values).max()), 1.0)
    numbers = [[form.format(value) for value in row] for row in values]
    if title:
        console.print(title, style="dim")
    shown = render_heat_map(
        rows, columns, shades, width=console.width, colour=colour, numbers=numbers, format_label=spell
    )
    console.print(shown, end="", crop=False)


def print_sizes(console: "Console", one: "Encoded", widths: list[int], name: str) -> None:
    """Print how many numbers each encoding takes, here and with larger vocabularies."""
    from seqloom.inspect.views.inputs import LARGE_VOCABULARIES

    console.print(f"\nhow large {name} is, in numbers", style="bold")
    large = (f"of {size:,} words" for size in LARGE_VOCABULARIES)
    table = plain_table(["", "shape", "numbers", "not 0", *large, "learned", "order"])
    larger = [one.sizes(widths, size) for size in LARGE_VOCABULARIES]
    for here, *there in zip(one.sizes(widths), *larger, strict=True):
        table.add_row(
            NAMES[here.encoding] + (f", {here.shape[-1]}" if here.encoding == "dense" else ""),
            " × ".join(f"{size:,}" for size in here.shape),
            f"{here.numbers:,}",
            f"{here.nonzero:,}",
            *(f"{size.numbers:,}" for size in there),
            f"{len(one.vocabulary):,} × {here.shape[-1]:,}" if here.parameters else "nothing",
            "kept" if len(here.shape) > 1 else "lost",
        )
    console.print(table)
    console.print(
        "of 10,000 words: what the same text takes where the vocabulary has as many; learned: the table, once for all",
        style="dim",
    )


def print_comparison(console: "Console", one: "Comparison", encoded: Sequence["Encoded"]) -> None:
    """Print by which encodings two texts can be told apart."""
    from seqloom.inspect.plots.terminal import format_inline

    console.print(f"\ncan text {one.first + 1} and text {one.second + 1} be told apart?", style="bold")
    if one.first_difference is None:
        order = "no: the same words in the same order"
    else:
        texts = [encoded[one.first].words, encoded[one.second].words]
        pair = [
            format_inline(words[one.first_difference].text) if one.first_difference < len(words) else "the end"
            for words in texts
        ]
        order = f"yes: at word {one.first_difference + 1:,}, {pair[0]} and {pair[1]}"
    same = "no: the same words as often, so no model can that reads only these"
    if one.same_state:
        state = "no" if one.first_difference is None else "no: it has forgotten what was different"
    else:
        state = f"yes: its last states, untrained, are {one.state:.3g} apart"
    rows = {
        "one-hot, in order": order,
        "bag of words": same if one.same_counts else f"yes: cosine {one.counts:.3f}",
        "tf–idf": same if one.same_counts else f"yes: cosine {one.tf_idf:.3f}",
        "mean of dense vectors": same if one.same_mean else f"yes: {one.mean:.3f} apart",
        "dense, read by a recurrent network": state,
    }
    for name, answer in rows.items():
        console.print(f"  {name:34} {answer}", markup=False, soft_wrap=True)
