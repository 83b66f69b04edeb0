"""n-gram models from and for other toolkits."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._options import NewRun
from seqloom.core.errors import DataError, UsageError

arpa = typer.Typer(help="n-gram models from and for other toolkits.", no_args_is_help=True, rich_markup_mode=None)


@arpa.command("export")
def export_arpa(
    run: Annotated[Path, typer.Argument(help="A run of an n-gram model.")],
    file: Annotated[Path, typer.Argument(help="The file to write; .gz is compressed.")],
) -> None:
    """Write a trained n-gram model as an ARPA file, for KenLM, SRILM and others."""
    from seqloom.classical.ngram.arpa import write_arpa
    from seqloom.classical.ngram.backoff import NGram
    from seqloom.runs.run import Run

    if file.exists():
        raise UsageError(f"{file} exists. Choose another name, or remove it first.")
    opened = Run.open(run)
    model = opened.model("cpu")
    if not isinstance(model, NGram):
        raise UsageError(f"{run} holds a {opened.recipe['model']['kind']} model; ARPA files hold n-gram models only.")
    words = [opened.tokenizer.token(token) for token in range(len(opened.tokenizer))]
    write_arpa(model, words, file)
    print(f"Wrote {file}: " + ", ".join(f"{count:,} {name}" for name, count in model.size().items()))


@arpa.command("import")
def import_arpa(
    file: Annotated[Path, typer.Argument(help="An ARPA file, plain or .gz.")],
    run: NewRun,
) -> None:
    """Make a run of an ARPA file's model; its words are what stands between white space."""
    if run.exists():
        raise UsageError(f"{run} exists. Name a run directory that is not there yet.")
    if not file.is_file():
        raise DataError(f"{file} is a folder, not an ARPA file." if file.exists() else f"{file} does not exist.")
    from seqloom.classical.ngram.arpa import read_arpa
    from seqloom.tasks.ngram import adopt

    model, words = read_arpa(file)
    adopt(model, words, run)
    print(f"Made {run}: " + ", ".join(f"{count:,} {name}" for name, count in model.size().items()))
    name = shlex.quote(str(run))
    print(f'Try: seqloom score {name} "a text" · seqloom generate {name} · seqloom evaluate {name} --text FILE')
