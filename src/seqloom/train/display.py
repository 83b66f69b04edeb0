"""Display of training events: a progress bar in a notebook or terminal, lines in a pipe, or JSON."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from seqloom.core import Json
from seqloom.core.metrics import baseline_notes
from seqloom.core.notebook import is_notebook, text_html
from seqloom.core.progress import report_progress
from seqloom.core.words import format_count
from seqloom.train import events as e

# The metrics that are displayed for each kind of model. The log contains all metrics.
HEADLINES = (
    ("loss", "perplexity", "bits_per_character"),
    ("loss", "perplexity", "rouge_1", "rouge_l"),
    ("loss", "perplexity", "labelled_attachment", "unlabelled_attachment", "valid_trees"),
    ("loss", "perplexity", "exact_match", "chrf", "valid_python"),
    ("loss", "perplexity", "bleu", "exact_match"),
    ("loss", "accuracy", "macro_f1"),
    ("loss", "average_precision", "micro_f1", "macro_f1", "subset_accuracy"),
    ("loss", "span_f1", "token_accuracy"),
    ("loss", "token_accuracy", "sentence_accuracy"),
    ("loss", "masked_accuracy", "replaced_f1", "replaced_rate"),
    ("loss", "neighbours", "wordsim353", "simlex999", "analogies"),
    ("loss", "neighbours"),
    ("loss", "mase", "crps", "coverage_80"),
    ("loss", "rmse_observed", "rmse_filtered", "rmse_smoothed"),
)
PROGRESS_INTERVAL = 10.0  # seconds between lines about training, if the output is not a terminal
NOTEBOOK_INTERVAL = 0.25  # seconds between updates of the bar in a notebook
NOTEBOOK_LINES = 12  # maximum number of displayed lines about evaluations in a notebook
PREPARATION_INTERVAL = 5.0  # seconds between lines about data preparation, if the output is not a terminal
Show = Callable[[e.Event], None]


def is_live() -> bool:
    """Return whether the output can show a progress bar, because it is a notebook or a terminal."""
    return is_notebook() or sys.stdout.isatty()


@contextmanager
def display_events(print_json: Callable[[dict[str, Json]], None] | None = None) -> Iterator[Show]:
    """Yield a function that displays an event in a progress bar, as a line in a pipe, or with `print_json`."""
    if print_json is not None:
        yield lambda event: print_json(e.event_to_json(event))
    elif is_notebook():
        yield NotebookProgress()
    elif not sys.stdout.isatty():
        yield _print_lines()
    else:
        with _terminal_bar() as show:
            yield show


def _print_lines() -> Show:
    shown = time.monotonic()

    def show(event: e.Event) -> None:
        nonlocal shown
        line = describe(event)
        if isinstance(event, e.Progress) and "loss" in event.values and event.step < event.total:
            if time.monotonic() - shown < PROGRESS_INTERVAL:
                return
            shown = time.monotonic()
        if line is not None:
            print(line, flush=True)

    return show


@contextmanager
def _terminal_bar() -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), BarColumn(bar_width=24))
    text = TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.description}")
    with Progress(*columns, text, console=Console(highlight=False), transient=True) as bar:
        task = bar.add_task("starting", total=1)

        def show(event: e.Event) -> None:
            """Update the bar at the bottom and print permanent lines above it."""
            line = describe(event)
            if isinstance(event, e.Progress):
                bar.update(task, completed=event.step, total=event.total, description=without_step(line))
            elif line is not None:
                bar.console.print(line, markup=False)
            if isinstance(event, e.Started):
                bar.update(task, completed=event.step, total=max(event.total, 1), description="starting")

        yield show


def without_step(line: str | None) -> str:
    """Return the description of a progress event without the step number."""
    return (line or "").split("  ", 1)[-1]


class NotebookOutput:
    """Replaceable HTML in the output of a notebook cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str) -> None:
        """Replace the HTML. All texts in it must be escaped."""
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


class NotebookProgress:
    """The events of a training run in a notebook: permanent lines, and below them a bar until training has finished."""

    def __init__(self) -> None:
        self._output, self._lines = NotebookOutput(), list[str]()
        self._bar, self._shown = "", -math.inf

    def __call__(self, event: e.Event) -> None:
        line = describe(event)
        if isinstance(event, e.Progress):
            self._bar = f"{_bar_html(event.step, event.total)} {text_html(without_step(line))}"
            if time.monotonic() - self._shown < NOTEBOOK_INTERVAL:
                return
        elif isinstance(event, e.Started):
            self._bar = _bar_html(event.step, event.total)
        elif isinstance(event, e.Finished | e.Stopped):
            self._bar = ""
        if line is not None and not isinstance(event, e.Progress):
            self._lines.append(line)
        self._shown = time.monotonic()
        hidden = max(0, len(self._lines) - NOTEBOOK_LINES)
        lines = [*([f"({hidden:,} earlier lines)"] if hidden else []), *self._lines[hidden:]]
        self._output.show(f"<pre>{text_html(chr(10).join(lines))}</pre>{self._bar}")


def _bar_html(step: int, total: int) -> str:
    return f'<progress value="{step}" max="{max(total, 1)}" style="width: 20em"></progress> {step:,}/{total:,}'


@contextmanager
def show_preparation() -> Iterator[None]:
    """Show the progress of slow data preparation in a notebook or on standard error."""
    report = _Preparation()
    with report_progress(report):
        try:
            yield
        finally:
            report.end()


class _Preparation:
    """A progress line. A notebook or a terminal replaces the line; other output prints a new line at intervals."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._output = NotebookOutput() if is_notebook() else None
        self._overwrites = sys.stderr.isatty()
        self._open = False

    def __call__(self, label: str, done: int, total: int | None) -> None:
        is_replaced = self._overwrites or self._output is not None
        if time.monotonic() - self._shown < (0.5 if is_replaced else PREPARATION_INTERVAL):
            return
        self._shown = time.monotonic()
        amount = f"{done / 1e6:,.1f} million characters" if not total else f"{done / total:.0%} of {total:,} characters"
        line = f"{label}: {amount}"
        self._open = is_replaced
        if self._output is not None:
            self._output.show(f"<pre>{text_html(line)}</pre>")
            return
        print(f"\r{line:<70}" if self._overwrites else line, end="" if self._overwrites else "\n", file=sys.stderr)
        sys.stderr.flush()

    def end(self) -> None:
        if self._open and self._output is not None:
            self._output.show("")
        elif self._open:
            print(file=sys.stderr)


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def describe(event: e.Event) -> str | None:
    """Describe an event in one line. Return None for events that are not displayed."""
    match event:
        case e.Started(step=step, resumed=resumed, parameters=parameters, device=device):
            size = f"{parameters:,} parameters on {device}" if parameters else "counting"
            return "\n".join([f"resumed at step {step}: {size}" if resumed else size, *event.notes])
        case e.Progress(step=step, total=total, values={"restart": restart, "iteration": iteration, "loss": loss}):
            return (
                f"step {step}/{total}  restart {restart:.0f}, iteration {iteration:.0f}: loss {loss:.5f}  "
                f"{event.tokens_per_second:,.0f} {event.speed_unit}/s  "
                f"at most {format_duration(event.seconds_left)} left"
            )
        case e.Progress(step=step, total=total, values=values) if "loss" in values:
            is_plain = event.unit == "nats" and not event.remark
            loss = values["loss"]
            perplexity = "huge" if loss >= 20 else f"{math.exp(loss):.2f}"  # "nan" if the loss is not a number
            derived = f"perplexity {perplexity}  " if is_plain else ""
            return (
                f"step {step}/{total}  loss {loss:.4f}  {derived}"
                f"{event.tokens_per_second:,.0f} {event.speed_unit}/s  {format_duration(event.seconds_left)} left"
            )
        case e.Progress(step=step, total=total, values={"order": order, "ngrams": ngrams}):
            return f"step {step}/{total}  order {order:.0f}: {ngrams:,.0f} n-grams"
        case e.Progress(step=step, total=total, values={"order": order, "fallback": fallback, **discounts}):
            fallback_note = "  (default discounts, because the counts give invalid ones)" if fallback else ""
            shown = " / ".join(f"{value:.3f}" for value in discounts.values())
            return f"step {step}/{total}  order {order:.0f}: discounts {shown}{fallback_note}"
        case e.Progress(step=step, total=total, values=values):
            return f"step {step}/{total}  " + "  ".join(f"{name} {value:,.6g}" for name, value in values.items())
        case e.Evaluated(step=step, split=split, metrics=metrics, best=best):
            headlines = next((names for names in HEADLINES if set(names) <= set(metrics)), metrics)
            shown = "  ".join(f"{name} {metrics[name]:.4f}" for name in headlines)
            return f"step {step}  {split}: {shown}{'  (best)' if best else ''}"
        case e.Prepared(step=step, seconds=seconds, shapes=shapes, notes=notes):
            captured = f"CUDA graphs of {format_count(shapes, 'batch shape')} captured in {seconds:.1f} s"
            return "\n".join(f"step {step}  {line}" for line in ((captured,) if shapes else ()) + notes)
        case e.BatchSplit(step=step, rows=rows, microbatches=count):
            return (
                f"step {step}: out of memory; batches of at least {rows} rows are split into {count} microbatches, "
                "which does not change the updates"
            )
        case e.Skipped(step=step, cause=cause):
            return f"step {step}: the update was skipped: {cause}"
        case e.Damaged(checkpoint=checkpoint, cause=cause):
            return f"checkpoint {checkpoint} is skipped: {cause}"
        case e.Stopped(step=step):
            return f"stopped at step {step}; all progress is saved"
        case e.Finished(step=step, reason=reason, seconds=seconds, step_seconds=step_seconds):
            within = "" if step_seconds is None else f" ({format_duration(step_seconds)} in training steps)"
            finished = f"finished at step {step} after {format_duration(seconds)}{within}: {reason}"
            return "\n".join([finished, *(f"note: {note}" for note in baseline_notes(event.best))])
    return None
