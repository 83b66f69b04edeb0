"""Words as vectors: what is near a word, analogies, pictures, and files of vectors in and out."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._options import JsonObject, NewRun, top_option
from seqloom.cli._output import print_json
from seqloom.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from seqloom.evaluate.word_space import NearWord, WordSpace

words = typer.Typer(help="Words as vectors, of any model of words.", no_args_is_help=True, rich_markup_mode=None)
RunPath = Annotated[Path, typer.Argument(help="A run of word vectors, or of any model with tokenizer.kind=words.")]
SHOWN = 12  # words of a picture that are named


@words.command("similar")
def similar(
    run: RunPath,
    word: Annotated[list[str], typer.Argument(help="A word, or several, each on its own.")],
    top: Annotated[int, top_option("Words shown for each")] = 10,
    as_json: JsonObject = False,
) -> None:
    """Words whose vectors point the same way: `seqloom words similar runs/word2vec-pydocs function`."""
    space = _space(run)
    found = [(one, space.similar(one, top)) for one in word]
    if as_json:
        print_json(
            {"run": str(run), "similar": [{"word": one, "best": [asdict(n) for n in near]} for one, near in found]}
        )
        return
    for place, (one, near) in enumerate(found):
        if len(found) > 1:
            print("" if place == 0 else "\n", one, ":", sep="")
        _show(near)


@words.command("analogy")
def analogy(
    run: RunPath,
    a: Annotated[str, typer.Argument(help="a …")],
    b: Annotated[str, typer.Argument(help="… is to b …")],
    c: Annotated[str, typer.Argument(help="… as c is to what?")],
    top: Annotated[int, top_option("Answers shown")] = 5,
    as_json: JsonObject = False,
) -> None:
    """What stands to C as B stands to A: `seqloom words analogy runs/word2vec-wikitext2 man woman king`."""
    found = _space(run).analogy(a, b, c, top)
    if as_json:
        print_json({"run": str(run), "a": a, "b": b, "c": c, "best": [asdict(near) for near in found]})
        return
    _show(found)


@words.command("plot")
def plot(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="Where to draw: .png or .svg.")],
    method: Annotated[Literal["pca", "tsne"], typer.Option(help="pca keeps distances, tsne keeps neighbours.")] = "pca",
    word: Annotated[list[str] | None, typer.Option(help="Draw this word; may be given more than once.")] = None,
    near: Annotated[
        list[str] | None, typer.Option(help="Draw this word and those near it; several have colours of their own.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Words near each; else of the most frequent. [default: 12, else 150]")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Of the most frequent, leave out the first so many.")] = 0,
    font: Annotated[str | None, typer.Option(help="A font that has the letters. [default: found]")] = None,
) -> None:
    """Draw words as points: `seqloom words plot runs/word2vec-pydocs --method tsne --out words.png`."""
    if word and near:
        raise UsageError("Choose words by --word or by --near, not by both.")
    from seqloom.cli._output import check_out, write_picture
    from seqloom.inspect.plots.words import Chosen, around, draw_words, most_frequent

    check_out(out)
    space = _space(run)
    if near:
        chosen = around(space, near, top or 12)
    elif word:
        named = list(dict.fromkeys(space.words[space.place(one)] for one in word))
        chosen = Chosen(named, [-1] * len(named), [])
    else:
        chosen = most_frequent(space, top or 150, skip)
    write_picture(out, draw_words(space, chosen, method, f"Words of {run}", font))
    print(f"{len(chosen.words)} words: {' '.join(chosen.words[:SHOWN])}{' …' if len(chosen.words) > SHOWN else ''}")


@words.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="Vectors in word2vec's text or binary format, plain or .gz.")],
    run: NewRun,
) -> None:
    """Make a run of a file of word vectors, as word2vec, GloVe and fastText write them."""
    if run.exists():
        raise UsageError(f"{run} exists. Name a run directory that is not there yet.")
    if not file.is_file():
        raise DataError(f"{file} is a folder, not a file of vectors." if file.exists() else f"{file} does not exist.")
    from seqloom.predict.word_vectors import import_vectors

    space = import_vectors(file, run).space
    name = shlex.quote(str(run))
    print(f"Made {run}: {len(space.words):,} words, vectors of {space.vectors.shape[1]} numbers")
    print(f"Try: seqloom words similar {name} {shlex.quote(space.words[0])} · seqloom evaluate {name}")


@words.command("export")
def export_file(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="The file to write; .gz is compressed.")],
    form: Annotated[
        Literal["text", "binary"] | None, typer.Option("--format", help="[default: binary for .bin, else text]")
    ] = None,
) -> None:
    """Write word vectors for other programs, and for the `model.vectors.file` of a classifier or tagger."""
    if file.exists():
        raise UsageError(f"{file} exists. Choose another name, or remove it first.")
    from seqloom.predict.word_vectors import export_vectors

    binary = file.name.removesuffix(".gz").endswith(".bin")
    space = export_vectors(run, file, form or ("binary" if binary else "text"))
    print(f"Wrote {file}: {len(space.words):,} words, vectors of {space.vectors.shape[1]} numbers")


def _space(run: Path) -> "WordSpace":
    from seqloom.predict.loader import load
    from seqloom.predict.word_vectors import word_space

    return word_space(load(run, "cpu"))


def _show(found: "list[NearWord]") -> None:
    for near in found:
        print(f"{near.score:z.4f}", near.word, sep="\t")
