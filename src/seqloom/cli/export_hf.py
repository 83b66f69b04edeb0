"""Models of Hugging Face's form out."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._options import Run


def export_hf(
    run: Run,
    directory: Annotated[Path, typer.Argument(help="The directory to write.")],
) -> None:
    """Write a run in the form of Hugging Face, which the transformers library reads."""
    from seqloom.exchange.exporting import export_run

    written = export_run(run, directory)
    print(
        f"Wrote {shlex.quote(str(directory))}: {written.family.name}, {written.parameters:,} parameters. "
        f'With transformers: {written.architecture}.from_pretrained("{directory}")'
    )
