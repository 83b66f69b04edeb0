"""Models of Hugging Face's form, in and out; MiniLM, which installs as a package."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import NewRun, Run

if TYPE_CHECKING:
    from seqloom.exchange.importing import Imported

# What to do first with a run, by its task.
TRY = {
    "language-model": 'seqloom generate {run} --prompt "The" · seqloom score {run} "a text" · seqloom evaluate {run} '
    "--text FILE",
    "masked-lm": 'seqloom fill {run} "The [MASK] barked." · seqloom train classify-sst2-finetune init.from={run}',
    "translate": 'echo "a sentence" | seqloom translate {run}',
}
# The same for a model that came without the layers of its task: it can be fine-tuned, and makes vectors.
TRY_BACKBONE = (
    'seqloom similar {run} --query "a funny film" < lines.txt · seqloom train classify-sst2-finetune init.from={run}'
)


def import_hf(
    directory: Annotated[Path, typer.Argument(help="A Hugging Face directory: config.json, model.safetensors, …")],
    run: NewRun,
) -> None:
    """Make a run of a model in the form of Hugging Face: GPT-2, Llama, BERT, BART, Marian."""
    from seqloom.exchange.importing import import_directory

    _report(run, import_directory(directory, run)[1])


def import_minilm(
    run: NewRun = Path("runs/minilm"),
) -> None:
    """Make a run of MiniLM, a small pretrained BERT for vectors of sentences and for fine-tuning."""
    from seqloom.exchange.importing import import_directory
    from seqloom.exchange.minilm import LICENCE, NAME, minilm_directory

    _report(run, import_directory(minilm_directory(), run, NAME, LICENCE)[1])


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


def _report(run: Path, found: "Imported") -> None:
    """Say what was made, what was missing, and what to do with it."""
    name = shlex.quote(str(run))
    size = f"{found.parameters:,} parameters, {len(found.tokenizer):,} tokens in its vocabulary"
    print(f"Made {name}: {found.family.name}, {size}.")
    if found.drawn:
        parts = found.family.missing(found.drawn, found.weights)
        those = "they are drawn anew, and know" if len(parts) > 1 else "it is drawn anew, and knows"
        typer.echo(f"note: the directory has no weights for {' and for '.join(parts)}: {those} nothing yet.", err=True)
    if found.left:
        typer.echo(f"note: a head for another task is left behind: {', '.join(found.left)}.", err=True)
    is_whole = found.family.task != "masked-lm" or "dense.weight" not in found.drawn
    if found.family.task in TRY:
        print("Try: " + (TRY[found.family.task] if is_whole else TRY_BACKBONE).format(run=name))
