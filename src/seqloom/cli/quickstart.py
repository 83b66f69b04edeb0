"""`seqloom quickstart`: train, evaluate and inspect a translator on embedded data."""

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import run_out_option
from seqloom.cli._output import print_notes
from seqloom.core.errors import Interrupted, SeqloomError, UsageError
from seqloom.core.metrics import baseline_notes

if TYPE_CHECKING:
    from seqloom.data.examples import ParallelExample
    from seqloom.inspect.views.attention import AlignmentView
    from seqloom.predict.translate import TranslatorPredictor
    from seqloom.recipes import Recipe
    from seqloom.train.stop import Stop
    from seqloom.training import Training

SHOWN_KINDS = (
    "full date",
    "countries",
    "quantity",
    "duration",
)  # kinds of phrases; one dev example of each is displayed
SOURCE, TARGET = "en", "fr"
MAX_WATCHED = 3  # number of dev examples to translate after each evaluation


def quickstart(
    source: Annotated[str, typer.Option(help="Source language: a language tag of Unicode CLDR.")] = SOURCE,
    target: Annotated[str, typer.Option(help="Target language: fr, hu, ja, ar, hi, ko, vi …")] = TARGET,
    out: Annotated[Path | None, run_out_option("runs/quickstart-en-fr, or the first unused name")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Resume this run. [default: a run with the same settings that has not finished]"
        ),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe overrides.")] = None,
) -> None:
    """Train a small translator on embedded data, and show its translations and alignments."""
    from seqloom.cli.train import prepare
    from seqloom.recipes import read_recipe
    from seqloom.train.stop import Stop
    from seqloom.training import begin
    from seqloom.training import resume as resume_run

    began, stop, changes = time.perf_counter(), Stop(), overrides or []
    if resume is not None:
        check_quickstart(resume, out is not None or (source, target) != (SOURCE, TARGET))
        path, exists = resume, True
    else:
        _, recipe = read_recipe("translate-cldr", [f"data.source={source}", f"data.target={target}", *changes])
        default = Path(f"runs/quickstart-{recipe.data.source}-{recipe.data.target}")
        path = out or find_path(default, recipe)
        exists, changes = out is None and path.exists(), []
        if not path.name:
            raise UsageError(f"--out must be the name of a new directory; got {str(path)!r}.")
    with stop.on_signals():
        if exists:
            print(f"Resuming {path}. To start a new run instead, choose another name with --out.\n")
        training = prepare(lambda: resume_run(path, changes) if exists else begin(recipe, path), stop)
        show_data(training)
        translator = follow(training, stop)
        try:
            with stop.interruptible():
                report(translator, choose_examples(training.task.corpus.split("test"), 1)[0].source, began)
        except Interrupted:
            raise Interrupted(f"Stopped during the evaluation. {describe_resume(training)}") from None


def check_quickstart(run: Path, has_options: bool) -> None:
    """Check that `--resume` names a run of this command, and that the command line has no options for a new run."""
    from seqloom.runs.run import Run

    if has_options:
        raise UsageError("--resume continues one run in its directory; leave out --out, --source and --target.")
    recipe = Run.open(run).recipe
    if (recipe.get("task"), (recipe.get("data") or {}).get("corpus")) != ("translate", "cldr"):
        raise UsageError(f"{run} was not created by `seqloom quickstart`. Resume it: seqloom train --resume {run}")


def find_path(path: Path, recipe: "Recipe") -> Path:
    """Return the first numbered path that does not exist, or that contains an unfinished run with this recipe."""
    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in range(1, 10_000))
    return next(name for name in names if not name.exists() or is_unfinished(name, recipe))


def is_unfinished(path: Path, recipe: "Recipe") -> bool:
    """Return whether a run has this recipe, has no results on test, and is not being trained."""
    from seqloom.config import to_mapping
    from seqloom.recipes import recipe_of
    from seqloom.runs.run import Run

    try:
        run = Run.open(path)
        if run.metrics("test") is not None or to_mapping(recipe_of(run)) != to_mapping(recipe):
            return False
        with run.locked():
            return True
    except SeqloomError:
        return False


def show_data(training: "Training") -> None:
    """Print the size of the data, and examples."""
    corpus = training.task.corpus
    print(f"1. The data: {len(corpus.split('train')):,} {corpus.description}. For example:")
    for pair in choose_examples(corpus.split("train"), 4):
        print(f"   {pair.source}  →  {pair.target}")


def choose_examples(pairs: "Sequence[ParallelExample]", limit: int) -> "list[ParallelExample]":
    """Return one pair of each kind in `SHOWN_KINDS`."""
    first = {kind: pair for pair in reversed(pairs) for kind in [pair.kind]}
    return [first[kind] for kind in SHOWN_KINDS if kind in first][:limit] or list(pairs[:limit])


def follow(training: "Training", stop: "Stop") -> "TranslatorPredictor":
    """Show the training progress, and translations of a few dev examples after each evaluation."""
    from seqloom.predict.loader import load
    from seqloom.train.display import display_events
    from seqloom.train.events import Evaluated, Stopped

    watched = choose_examples(training.task.corpus.split("dev"), MAX_WATCHED)
    print("\n2. Training. These lines are not in the training data; they are translated after each evaluation:")
    for pair in watched:
        print(f"   {pair.source}")
    metrics: Mapping[str, float] = {}
    with display_events() as show:
        for event in training.events(stop):
            if isinstance(event, Evaluated):
                metrics = event.metrics
                shown = f"loss {metrics['loss']:.3f}"  # there is no BLEU with batch.dev_pairs=0
                if "bleu" in metrics:
                    shown = f"BLEU {metrics['bleu']:.1f}, {metrics['exact_match']:.1%} exactly right"
                print(f"step {event.step}: {shown}")
                lines = load(training.run.path).translate([pair.source for pair in watched], beam=1)
                for pair, line in zip(watched, lines, strict=True):
                    print(f"   {'✓' if line.text == pair.target else '·'} {line.text}", flush=True)
            else:
                show(event)
            if isinstance(event, Stopped):
                warn_if_poor(training, metrics, stop)
                raise Interrupted(describe_resume(training))
    translator: TranslatorPredictor = load(training.run.path)
    return translator


def warn_if_poor(training: "Training", metrics: Mapping[str, float], stop: "Stop") -> None:
    """Print a note if the last evaluation of an interrupted training run is below the copy baseline."""
    stop.withdraw(stop.signal)
    with stop.interruptible(), suppress(Interrupted):  # a second Ctrl-C skips the note
        if "bleu" in metrics:
            notes = baseline_notes({**metrics, **training.task.baseline_metrics("dev")})
            print_notes(f"training was interrupted: {note}" for note in notes)


def describe_resume(training: "Training") -> str:
    return f"To resume: seqloom quickstart --resume {shlex.quote(str(training.run.path))}"


def report(translator: "TranslatorPredictor", example: str, began: float) -> None:
    """Print the metrics of the test split, an alignment, and commands to try."""
    from seqloom.inspect.views.attention import alignment_view

    result, folder = translator.report("test"), translator.run.path
    metrics, path = result.metrics, shlex.quote(str(folder))
    print(f"\n3. The test split, {len(result.lines):,} phrases that are not in the training data ({result.decoding}):")
    print(f"   BLEU {metrics['bleu']:.2f}   chrF {metrics['chrf']:.2f}   exactly right {metrics['exact_match']:.2%}")
    if "baseline_bleu" in metrics:
        print(f"   baseline (the translation of the most similar training phrase): BLEU {metrics['baseline_bleu']:.2f}")
    for note in baseline_notes(metrics):
        print(f"   note: {note}")
    print("\n4. Attention: the source words used for each target word. The training data has no alignments:")
    if "alignment_accuracy" in metrics:
        print(f"   {metrics['alignment_accuracy']:.1%} of the target words attend to the correct source word.\n")
    try:
        show_alignment(alignment_view(translator, example), folder)
    except UsageError as error:  # the model has no attention with model.attention=null
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
    """Return the command that starts `seqloom`, with its path if the environment is not active."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "seqloom" and shutil.which("seqloom") is None else "seqloom"


def show_alignment(view: "AlignmentView", folder: Path) -> None:
    """Print an alignment, and write its plot to the run directory."""
    from seqloom.cli._attention import draw_grid, print_alignment
    from seqloom.core.errors import ResourceError
    from seqloom.inspect.plots.figures import choose_fonts, format_word

    grid, title = view.grid(end=False), [view.source, view.text]
    print_alignment(view, grid)
    try:
        # An .svg file keeps text as text, so the viewer chooses the fonts.
        missing_glyphs = choose_fonts(map(format_word, [*grid.rows, *grid.columns, *title])).warning()
        draw_grid(folder / ("attention.svg" if missing_glyphs else "attention.png"), grid, title)
    except ResourceError as error:
        print(f"The plot was not written: {error}")
