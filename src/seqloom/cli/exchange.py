"""Import and export models: Hugging Face checkpoints, MiniLM, and n-gram models in ARPA files."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import NewFile, NewRun, Run, check_import, check_new_file
from seqloom.cli._output import print_notes
from seqloom.core.errors import UsageError
from seqloom.core.words import format_sizes

if TYPE_CHECKING:
    from seqloom.exchange.conversion import ImportedModel

arpa = typer.Typer(
    help="Import and export n-gram models in the ARPA format.", no_args_is_help=True, rich_markup_mode=None
)
# Commands to try after an import, by task.
TRY = {
    "language-model": 'seqloom generate {run} --prompt "The" · seqloom score {run} "a text" · seqloom evaluate {run} '
    "FILE",
    "masked-lm": 'seqloom fill-mask {run} "The [MASK] barked." · seqloom train classify-sst2-finetune init.from={run}',
    "translate": 'echo "a sentence" | seqloom translate {run}',
}
# Commands for a model without task layers, which can compute embeddings and be fine-tuned.
TRY_BACKBONE = (
    'seqloom similar {run} --query "a funny film" < lines.txt · seqloom train classify-sst2-finetune init.from={run}'
)


def import_hf(
    source: Annotated[
        str,
        typer.Argument(
            help="A directory with config.json, model.safetensors, …, or the name of a model on the Hugging Face hub, "
            "such as openai-community/gpt2, which is downloaded."
        ),
    ],
    run: NewRun,
    revision: Annotated[
        str | None, typer.Option(help="The branch, tag or commit of a model on the hub. [default: main]")
    ] = None,
) -> None:
    """Import a Hugging Face checkpoint: GPT-2, Llama, Mistral, BERT, BART or Marian."""
    from seqloom.predict.loader import import_run

    report_import(run, import_run(source, run, revision)[1])


def import_minilm(run: NewRun = Path("runs/minilm")) -> None:
    """Import MiniLM, a small pretrained BERT for sentence embeddings and fine-tuning."""
    from seqloom.predict.loader import import_minilm_run

    report_import(run, import_minilm_run(run)[1])


def export_hf(
    run: Run,
    directory: Annotated[Path, typer.Argument(help="The directory to write.")],
) -> None:
    """Export a run as a Hugging Face checkpoint."""
    from seqloom.exchange.conversion import export_run

    written = export_run(run, directory)
    print(
        f"Wrote {shlex.quote(str(directory))}: {written.family.name}, {written.parameters:,} parameters. "
        f'With transformers: {written.architecture}.from_pretrained("{directory}")'
    )


def report_import(run: Path, imported: "ImportedModel") -> None:
    """Print the size of an imported model, its missing weights, and commands to try."""
    name, family = shlex.quote(str(run)), imported.family
    size = f"{imported.parameters:,} parameters, {len(imported.tokenizer):,} tokens in its vocabulary"
    print(f"Created {name}: {family.name}, {size}.")
    if imported.initialized:
        parts = family.missing(imported.initialized, imported.weights)
        verb = "are" if len(parts) > 1 else "is"
        print_notes([f"the directory has no weights for {' and for '.join(parts)}, which {verb} initialized randomly."])
    if imported.unused:
        print_notes(
            [f"these weights belong to the head of another task and were not imported: {', '.join(imported.unused)}."]
        )
    is_complete = family.task != "masked-lm" or "dense.weight" not in imported.initialized
    if family.task in TRY:
        print("Try: " + (TRY[family.task] if is_complete else TRY_BACKBONE).format(run=name))


@arpa.command("export")
def export_arpa(run: Annotated[Path, typer.Argument(help="Run directory of an n-gram model.")], file: NewFile) -> None:
    """Export an n-gram model as an ARPA file for KenLM, SRILM and others."""
    from seqloom.classical.ngram import NGram
    from seqloom.classical.ngram.arpa import write_arpa
    from seqloom.runs.run import Run

    check_new_file(file)
    opened = Run.open(run)
    model = opened.model("cpu")
    if not isinstance(model, NGram):
        raise UsageError(f"An ARPA file requires an n-gram model; {run} is a {opened.recipe['model']['kind']} model.")
    words = [opened.tokenizer.token(token) for token in range(len(opened.tokenizer))]
    write_arpa(model, words, file)
    print(f"Wrote {file}: {format_sizes(model.size())}")


@arpa.command("import")
def import_arpa(
    file: Annotated[Path, typer.Argument(help="An ARPA file, which may be compressed (.gz).")], run: NewRun
) -> None:
    """Import an ARPA file as a run; words are separated by white space."""
    check_import(file, run, "an ARPA file")
    from seqloom.classical.ngram.arpa import read_arpa
    from seqloom.tasks.ngram import create_ngram_run

    model, words = read_arpa(file)
    create_ngram_run(model, words, run)
    print(f"Created {run}: {format_sizes(model.size())}")
    name = shlex.quote(str(run))
    print(f'Try: seqloom score {name} "a text" · seqloom generate {name} · seqloom evaluate {name} FILE')
