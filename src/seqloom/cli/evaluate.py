"""Measure a trained model on a split of its data."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from seqloom.cli._json import print_json
from seqloom.core.errors import UsageError
from seqloom.core.words import did_you_mean

LABELS = {
    "loss": "loss, nats per token",
    "perplexity": "perplexity per token",
    "word_perplexity": "perplexity per word",
    "bits_per_character": "bits per character",
    "bits_per_byte": "bits per byte",
    "unknown_rate": "share read as <unk>",
    "text_kept": "documents kept whole",
}


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    split: Annotated[str | None, typer.Option(help="dev, test or train of the run's own data. [default: dev]")] = None,
    text: Annotated[Path | None, typer.Option(help="Another text instead: a file, a .gz file, or a folder.")] = None,
    documents: Annotated[
        Literal["file", "line", "paragraph"] | None,
        typer.Option(help="With --text: what a document is. [default: as the run's own data says, else line]"),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the real data sets (else SEQLOOM_DATA).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
) -> None:
    """Every metric of one split: `seqloom evaluate runs/lm-char-lstm --split test`."""
    if text is not None and split is not None:
        raise UsageError("Evaluate either a --split of the run's own data or another --text, not both.")
    if documents is not None and text is None:
        raise UsageError("--documents says how to read --text FILE; the run's own splits are read as its recipe says.")
    from seqloom.api import load
    from seqloom.data.corpus import SPLITS, Counts
    from seqloom.data.folder import use_data_folder

    model = load(run, device)
    if text is not None:
        from seqloom.data.corpora.text import read_documents

        found = read_documents(text, documents or (model.run.recipe.get("data") or {}).get("documents", "line"))
        source, counts = str(text), Counts.of(found)
        metrics = model.evaluate_documents(found)
    else:
        split = split or "dev"
        if split not in SPLITS:
            raise UsageError(f"There is no split {split!r}: {did_you_mean(split, SPLITS)}.")
        with use_data_folder(data_dir):
            metrics = model.evaluate(split)
        source, counts = f"{model.run.data['corpus']}, {split}", Counts(**model.run.data["counts"][split])
    if as_json:
        print_json({"run": str(run), "data": source, **asdict(counts), **metrics})
        return
    print(f"{run} on {source}: {counts.words:,} words, {counts.characters:,} characters (ends of documents included)")
    for name, value in metrics.items():
        print(f"  {LABELS.get(name, name):22} {value:.4f}")
