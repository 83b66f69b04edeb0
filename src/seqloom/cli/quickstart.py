"""`seqloom quickstart`: train, evaluate and inspect a translator on embedded data."""

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import run_out_option
from seqloom.core.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from seqloom.data.examples import ParallelExample
    from seqloom.inspect.views.attention import AlignmentView
    from seqloom.predict.translate import TranslatorPredictor
    from seqloom.train.stop import Stop
    from seqloom.training import Training

SHOWN_KINDS = (
    "full date",
    "countries",
    "quantity",
    "duration",
)  # kinds of phrases; one dev example of each is displayed
MAX_WATCHED = 3  # dev examples translated after each evaluation


def quickstart(
    source: Annotated[str, typer.Option(help="Source language: a language tag of Unicode CLDR.")] = "en",
    target: Annotated[str, typer.Option(help="Target language: fr, hu, ja, ar, hi, ko, vi …")] = "fr",
    out: Annotated[Path | None, run_out_option("runs/quickstart-en-fr, or the first unused name")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe overrides.")] = None,
) -> None:
    """Train a small translator on embedded data, and show its translations and alignments."""
    from seqloom.recipes import read_recipe
    from seqloom.train.stop import Stop
    from seqloom.training import begin

    began, stop = time.perf_counter(), Stop()
    languages = [f"data.source={source}", f"data.target={target}"]
    _, recipe = read_recipe("translate-cldr", [*languages, *(overrides or [])])
    path = out or find_unused_path(Path(f"runs/quickstart-{recipe.data.source}-{recipe.data.target}"))
    if not path.name:
        raise UsageError(f"--out must be the name of a new directory; got {str(path)!r}.")
    with stop.on_signals():
        training = begin(recipe, path)
        corpus = training.task.corpus
        print(f"1. The data: {len(corpus.split('train')):,} {corpus.description}. For example:")
        for pair in choose_examples(corpus.split("train"), 4):
            print(f"   {pair.source}  →  {pair.target}")
        for warning in training.warnings():
            print(f"   {warning}")
        translator = follow(training, stop)
        report(translator, choose_examples(corpus.split("test"), 1)[0].source, began)


def find_unused_path(path: Path) -> Path:
    """Return a path that does not exist, with a number appended if necessary."""
    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in range(1, 10_000))
    return next(name for name in names if not name.exists())


def choose_examples(pairs: "Sequence[ParallelExample]", limit: int) -> "list[ParallelExample]":
    """Return one pair of each kind in `SHOWN_KINDS`."""
    first = {kind: pair for pair in reversed(pairs) for kind in [pair.kind]}
    return [first[kind] for kind in SHOWN_KINDS if kind in first][:limit] or list(pairs[:limit])


def follow(training: "Training", stop: "Stop") -> "TranslatorPredictor":
    """Show the training progress, and translations of a few dev examples after each evaluation."""
    from seqloom.cli.progress import display_events
    from seqloom.predict.loader import load
    from seqloom.train.events import Evaluated, Stopped

    watched = choose_examples(training.task.corpus.split("dev"), MAX_WATCHED)
    print("\n2. Training. These lines are not in the training data; they are translated after each evaluation:")
    for pair in watched:
        print(f"   {pair.source}")
    with display_events(as_json=False) as show:
        for event in training.events(stop):
            if isinstance(event, Evaluated):
                metrics = event.metrics
                shown = f"loss {metrics['loss']:.3f}"  # batch.dev_pairs=0
                if "bleu" in metrics:
                    shown = f"BLEU {metrics['bleu']:.1f}, {metrics['exact_match']:.1%} exactly right"
                print(f"step {event.step}: {shown}")
                lines = load(training.run.path).translate([pair.source for pair in watched], beam=1)
                for pair, line in zip(watched, lines, strict=True):
                    print(f"   {'✓' if line.text == pair.target else '·'} {line.text}", flush=True)
            else:
                show(event)
            if isinstance(event, Stopped):
                raise Interrupted(f"To resume: seqloom train --resume {shlex.quote(str(training.run.path))}")
    translator: TranslatorPredictor = load(training.run.path)
    return translator


def report(translator: "TranslatorPredictor", example: str, began: float) -> None:
    """Print the metrics of the test split, an alignment, and commands to try."""
    from seqloom.inspect.views.attention import alignment_view

    result, folder = translator.report("test"), translator.run.path
    metrics, path = result.metrics, shlex.quote(str(folder))
    print(f"\n3. The test split, {len(result.lines):,} phrases that are not in the training data ({result.decoding}):")
    print(f"   BLEU {metrics['bleu']:.2f}   chrF {metrics['chrf']:.2f}   exactly right {metrics['exact_match']:.2%}")
    if "copy_bleu" in metrics:
        print(f"   baseline (the translation of the most similar training phrase): BLEU {metrics['copy_bleu']:.2f}")
    print("\n4. Attention: the source words used for each target word. The training data has no alignments:")
    if "alignment_accuracy" in metrics:
        print(f"   {metrics['alignment_accuracy']:.1%} of the words attend to the correct source word.\n")
    try:
        show_alignment(alignment_view(translator, example), folder)
    except UsageError as error:  # model.attention=null
        print(f"   {error}")
    program = find_program()
    print(f"\nDone in {time.perf_counter() - began:.0f} s. Translate your own text:")
    print(f"   echo {shlex.quote(example)} | {program} translate {path}")
    print("Next steps:")
    print(f"   {program} translate {path} --beam 5 --n-best 5 < input.txt")
    print(f"   {program} inspect attention {path} {shlex.quote(example)} --out attention.png")
    print(f"   {program} evaluate {path} --split test")
    print(f"   {program} studio {shlex.quote(str(folder.parent))}       inspect it in the browser")
    print(f"   {program} quickstart --source en --target hu       other languages: ja, ar, hi, ko, vi …")
    print(f"   {program} init corpus.en corpus.de                 a recipe for your own sentence pairs")


def find_program() -> str:
    """Return the command that starts `seqloom`; under `make demo`, its environment may not be active."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "seqloom" and shutil.which("seqloom") is None else "seqloom"


def show_alignment(view: "AlignmentView", folder: Path) -> None:
    """Print an alignment and plot it into the run directory."""
    from seqloom.cli._attention import draw_grid, print_alignment
    from seqloom.core.errors import ResourceError
    from seqloom.inspect.plots.figures import choose_fonts, format_word

    grid, title = view.grid(end=False), [view.source, view.text]
    print_alignment(view, grid)
    try:
        # An .svg file keeps text, which is drawn with the fonts of the viewer.
        missing_glyphs = choose_fonts(map(format_word, [*grid.rows, *grid.columns, *title])).warning()
        draw_grid(folder / ("attention.svg" if missing_glyphs else "attention.png"), grid, title)
    except ResourceError as error:
        print(f"The plot was not written: {error}")
