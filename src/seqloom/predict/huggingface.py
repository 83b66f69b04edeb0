"""Models of Hugging Face's form, in and out."""

from pathlib import Path
from typing import Any

from seqloom.exchange.exporting import export_run
from seqloom.exchange.importing import import_directory
from seqloom.exchange.minilm import LICENCE, NAME, minilm_directory
from seqloom.predict.loader import load


def import_hf(directory: str | Path, out: str | Path, device: str = "auto") -> Any:
    """Make a run of the model in a Hugging Face directory, and load it: what `seqloom import-hf` does."""
    run, _ = import_directory(directory, out)
    return load(run.path, device)


def import_minilm(out: str | Path = "runs/minilm", device: str = "auto") -> Any:
    """Make a run of MiniLM, whose package must be installed, and load it: what `seqloom import-minilm` does."""
    run, _ = import_directory(minilm_directory(), out, NAME, LICENCE)
    return load(run.path, device)


def export_hf(run: str | Path, directory: str | Path) -> Path:
    """Write a run as a Hugging Face directory, and return its path: what `seqloom export-hf` does."""
    return export_run(run, directory).path
