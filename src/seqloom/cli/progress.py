"""Display of training events: a progress bar on a terminal, lines in a pipe, or JSON."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from seqloom.cli._output import print_json
from seqloom.core.progress import report_progress
from seqloom.core.words import format_count
from seqloom.train import events as e

# The displayed metrics of each kind of model; the log has all metrics.
HEADLINES = (
    ("loss", "perplexity", "bits_per_character"),
    ("loss", "perplexity", "bleu", "exact_match"),
    ("loss", "accuracy", "macro_f1"),
    ("loss", "span_f1", "token_accuracy"),
    ("loss", "token_accuracy", "sentence_accuracy"),
    ("loss", "masked_accuracy", "replaced_f1", "replaced_rate"),
    ("loss", "neighbours", "wordsim353", "simlex999", "analogies"),
    ("loss", "neighbours"),
    ("loss", "mase", "crps", "coverage_80"),
    ("loss", "rmse_observed", "rmse_filtered", "rmse_smoothed"),
)
PREPARATION_INTERVAL = 5.0  # seconds between lines about data preparation, if not on a terminal
Show = Callable[[e.Event], None]


@contextmanager
def display_events(as_json: bool) -> Iterator[Show]:
    """Yield a function that displays an event, as JSON, as a line or in a progress bar."""
    if as_json:
        yield lambda event: print_json(e.event_to_json(event))
        return

    def print_plain(event: e.Event) -> None:
        if (line := describe(event)) is not None:
            print(line, flush=True)

    if not sys.stdout.isatty():
        yield print_plain
        return
    columns = (SpinnerColumn(), BarColumn(bar_width=24))
    text = TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.description}")
    with Progress(*columns, text, console=Console(highlight=False), transient=True) as bar:
        task = bar.add_task("starting", total=1)

        def show(event: e.Event) -> None:
            """Update the bar at the bottom and print permanent lines above it."""
            line = describe(event)
            if isinstance(event, e.Progress):
                metrics = (line or "").split("  ", 1)[-1]
                bar.update(task, completed=event.step, total=event.total, description=metrics)
            elif line is not None:
                bar.console.print(line, markup=False)
            if isinstance(event, e.Started):
                bar.update(task, completed=event.step, total=max(event.total, 1), description="starting")

        yield show


@contextmanager
def show_preparation() -> Iterator[None]:
    """Show the progress of data preparation on standard error if it takes long."""
    report = _Preparation()
    with report_progress(report):
        try:
            yield
        finally:
            report.end()


class _Preparation:
    """A progress line that is overwritten on a terminal and repeated at intervals elsewhere."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._overwrites = sys.stderr.isatty()
        self._open = False

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if time.monotonic() - self._shown < (0.5 if self._overwrites else PREPARATION_INTERVAL):
            return
        self._shown = time.monotonic()
        amount = f"{done / 1e6:,.1f} million characters" if not total else f"{done / total:.0%} of {total:,} characters"
        line = f"{label}: {amount}"
        print(f"\r{line:<70}" if self._overwrites else line, end="" if self._overwrites else "\n", file=sys.stderr)
        sys.stderr.flush()
        self._open = self._overwrites

    def end(self) -> None:
        if self._open:
            print(file=sys.stderr)


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def describe(event: e.Event) -> str | None:
    """Describe an event in one line; return None for events that are not displayed."""
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
            perplexity = "huge" if loss >= 20 else f"{math.exp(loss):.2f}"  # nan for a loss that is not a number
            derived = f"perplexity {perplexity}  " if is_plain else ""
            return (
                f"step {step}/{total}  loss {loss:.4f}  {derived}"
                f"{event.tokens_per_second:,.0f} {event.speed_unit}/s  {format_duration(event.seconds_left)} left"
            )
        case e.Progress(step=step, total=total, values={"order": order, "ngrams": ngrams}):
            return f"step {step}/{total}  order {order:.0f}: {ngrams:,.0f} n-grams"
        case e.Progress(step=step, total=total, values={"order": order, "fallback": fallback, **discounts}):
            fallback_note = "  (default discounts, since the counts of the text give no valid ones)" if fallback else ""
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
                f"step {step}: out of memory; batches of {rows} rows or more are split into {count} microbatches, "
                "with the same updates"
            )
        case e.Skipped(step=step, cause=cause):
            return f"step {step}: the update was skipped: {cause}"
        case e.Damaged(checkpoint=checkpoint, cause=cause):
            return f"checkpoint {checkpoint} is skipped: {cause}"
        case e.Stopped(step=step):
            return f"stopped at step {step}; all progress is saved"
        case e.Finished(step=step, reason=reason, seconds=seconds, step_seconds=step_seconds):
            within = "" if step_seconds is None else f", {format_duration(step_seconds)} of it in steps"
            return f"finished at step {step} after {format_duration(seconds)}{within}: {reason}"
    return None
