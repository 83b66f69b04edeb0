"""Models of Hugging Face's form in."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from seqloom.cli._options import NewRun

# What to do first with a run, by its task.
TRY = {
    "language-model": 'seqloom generate {run} --prompt "The" · seqloom score {run} "a text" · seqloom evaluate {run} '
    "--text FILE",
    "masked-lm": 'seqloom fill {run} "The [MASK] barked." · seqloom train classify-sst2-finetune init.from={run}',
    "translate": 'echo "a sentence" | seqloom translate {run}',
}


# The same of one that came without what its task needs: it can be taken over, and makes vectors.
BODY = 'seqloom similar {run} --query "a funny film" < lines.txt · seqloom train classify-sst2-finetune init.from={run}'


def import_hf(
    directory: Annotated[Path, typer.Argument(help="A Hugging Face directory: config.json, model.safetensors, …")],
    run: NewRun,
) -> None:
    """Make a run of a model in the form of Hugging Face: GPT-2, Llama, BERT, BART, Marian."""
    from seqloom.exchange.importing import import_directory

    _, found = import_directory(directory, run)
    report(run, found)


def report(run: Path, found: Any) -> None:
    """What was made, what was missing, and what to do with it."""
    name = shlex.quote(str(run))
    print(
        f"Made {name}: {found.family.name}, {found.parameters:,} parameters, {len(found.tokenizer):,} tokens in its "
        "vocabulary."
    )
    if found.drawn:
        parts = found.family.missing(found.drawn, found.weights)
        those = "they are drawn anew, and know" if len(parts) > 1 else "it is drawn anew, and knows"
        typer.echo(f"note: the directory has no weights for {' and for '.join(parts)}: {those} nothing yet.", err=True)
    if found.left:
        typer.echo(f"note: a head for another task is left behind: {', '.join(found.left)}.", err=True)
    told = found.family.task != "masked-lm" or "dense.weight" not in found.drawn
    if found.family.task in TRY:
        print("Try: " + (TRY[found.family.task] if told else BODY).format(run=name))
