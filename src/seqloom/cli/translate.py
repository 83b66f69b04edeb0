"""`seqloom translate`: translate texts with a model or an ensemble."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._input import check_unicode, open_lines
from seqloom.cli._options import BATCH_SIZE, Beam, Device, Window, batch_option, drop_unset, json_option
from seqloom.cli._output import format_lists, print_predictions
from seqloom.cli._tables import TableColumns, TableFile, TableIn, TableOut, check_table_options
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.translate import Translation

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN... [TEXT]...",
        help="A run directory, or several for an ensemble, then texts. [default: the lines of standard input]",
    ),
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Exponent of the length penalty; 0 favours short translations.")
]
CoveragePenalty = Annotated[
    float | None, typer.Option(help="Penalty for source words that receive too little attention.")
]
Stopping = Annotated[
    Literal["usual", "exact"] | None, typer.Option(help="The stopping rule; see docs/explanations/decoding.md.")
]
Rescore = Annotated[Path | None, typer.Option(help="Rescore this n-best list instead of translating.")]
Weight = Annotated[
    float | None,
    typer.Option(help="With --rescore: weight of the model relative to the scores in the list. [default: 1]"),
]
GlossaryFile = Annotated[
    Path | None,
    typer.Option(
        "--glossary",
        metavar="FILE",
        help="A table of source and target terms. If a source term occurs in a line, the translation of the line must "
        "contain the target term.",
    ),
]
Force = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TERM", help="Every translation must contain this term, or one of A|B|C. The option may be repeated."
    ),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(metavar="TERM", help="No translation may contain this term. The option may be repeated."),
]
ForceColumn = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="With --in: a column of required terms, separated by ;.")
]
Alignment = Annotated[bool, typer.Option("--alignment", help="Append a tab and the word alignment, such as 0-0 1-2.")]


def translate(
    words: Words,
    beam: Beam = None,
    n_best: Annotated[int | None, typer.Option(min=1, help="Number of translations per line.")] = None,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    min_length: Annotated[int | None, typer.Option(min=0, help="Minimum number of tokens.")] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Maximum number of tokens, including END.")] = None,
    stopping: Stopping = None,
    prefix: Annotated[str, typer.Option(help="Prefix of every translation.")] = "",
    glossary: GlossaryFile = None,
    force: Force = None,
    forbid: Forbid = None,
    force_column: ForceColumn = None,
    alignment: Alignment = False,
    rescore: Rescore = None,
    weight: Weight = None,
    as_json: Annotated[bool, json_option("One JSON object per line, with scores and candidates.")] = False,
    batch: Annotated[int, batch_option("Number of lines per batch.")] = BATCH_SIZE,
    window: Window = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Translate texts: `seqloom translate runs/X < input.txt > output.txt`.

    With --in, the translations are added to a table: `seqloom translate runs/X --in in.csv --column en --out out.csv`.
    """
    options = drop_unset(
        beam=beam,
        n_best=n_best,
        length_penalty=length_penalty,
        coverage_penalty=coverage_penalty,
        min_length=min_length,
        max_length=max_length,
        stopping=stopping,
    )
    if rescore is None and weight is not None:
        raise UsageError("--weight requires an n-best list: add --rescore FILE.")
    terms = drop_unset(glossary=glossary, force=check_unicode(force or []), forbid=check_unicode(forbid or []))
    others = {**options, **terms, "prefix": prefix, "alignment": alignment}
    for name, value in others.items() if rescore is not None else ():
        if value and name not in ("length_penalty", "n_best"):
            raise UsageError(f"--{name.replace('_', '-')} cannot be combined with --rescore; leave out one of them.")
    from seqloom.data.candidates import candidates_of
    from seqloom.predict.ensembles import ensemble
    from seqloom.predict.loader import load
    from seqloom.predict.translate import TranslatorPredictor

    runs, texts = split_words(words)
    check_table_options(table, column, out, texts, rescore=rescore, alignment=alignment, as_json=as_json)
    if force_column is not None and table is None:
        raise UsageError("--force-column requires a table: add --in FILE.")
    model = ensemble(runs, device) if len(runs) > 1 else load(runs[0], device, TranslatorPredictor)
    if table is not None:
        rows = TableFile(table, column, out, model)
        terms |= {} if force_column is None else {"line_terms": rows.lists(force_column, "--force-column")}
        options |= {"prefix": check_unicode([prefix])[0], **terms}
        rows.write(model, model.translate(rows.texts, batch_size=batch, **options))
        return
    lines, size = open_lines(texts, batch, window)
    translations: Iterator[Translation]
    if rescore is None:
        options |= {"prefix": check_unicode([prefix])[0], "attention": alignment, **terms}
        translations = model.translate(lines, batch_size=batch, window=size, stream=True, **options)
    else:
        lists = candidates_of(lines, rescore)
        ranked = model.rescore(
            lists, weight=1.0 if weight is None else weight, length_penalty=length_penalty, stream=True
        )
        translations = (replace(ranking, candidates=ranking.candidates[:n_best]) for ranking in ranked)

    def to_fields(translation: "Translation") -> "Iterator[Sequence[str]]":
        for each in translation.candidates:
            yield (each.text, f"{each.score:.4f}", *([each.alignment or ""] if alignment else []))

    print_predictions(model, translations, as_json, format_lists(to_fields) if n_best else None)


def split_words(words: list[str]) -> tuple[list[Path], list[str]]:
    """Split the arguments into runs and texts.

    A run is a directory with a recipe.yaml. A path in the same folder as the previous run also counts as a run, so that
    a misspelled run is an error instead of a text to translate.
    """

    def is_run(word: str) -> bool:
        return bool(word) and os.path.isfile(
            os.path.join(word, "recipe.yaml")
        )  # also False for texts that are not valid paths

    runs = [Path(words[0])]
    for word in words[1:]:
        if not (is_run(word) or ("/" in word and Path(word).parent == runs[-1].parent)):
            break
        runs.append(Path(word))
    texts = words[len(runs) :]
    if late := next(filter(is_run, texts), None):
        raise UsageError(f"Runs must precede the texts, but the run {late} follows a text.")
    return runs, texts
