"""MiniLM in: a real pretrained model that installs as a package."""

from pathlib import Path

from seqloom.cli._options import NewRun
from seqloom.cli.import_hf import report


def import_minilm(
    run: NewRun = Path("runs/minilm"),
) -> None:
    """Make a run of MiniLM, a small pretrained BERT for vectors of sentences and for fine-tuning."""
    from seqloom.exchange.importing import import_directory
    from seqloom.exchange.minilm import LICENCE, NAME, minilm_directory

    _, found = import_directory(minilm_directory(), run, NAME, LICENCE)
    report(run, found)
