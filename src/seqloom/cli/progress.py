"""Training events for people and for programs: a live bar on a terminal, plain lines in a pipe, JSON on request."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from seqloom.cli._output import print_json
from seqloom.core.progress import report_progress
from seqloom.train import events as e

# Of the metrics of a language model, a translator, a classifier, a tagger … those that are shown; the log has all.
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
PATIENCE = 5.0  # seconds between two lines about the preparation of the data, where it is not a terminal
Show = Callable[[e.Event], None]


@contextmanager
def display(as_json: bool) -> Iterator[Show]:
    """What to call with every event, chosen by where the output goes."""
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
            """Update the bar at the bottom, and print above it the lines worth keeping."""
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
def preparation() -> Iterator[None]:
    """Show on stderr how far the preparation of the data has come, once it takes a while."""
    report = _Preparation()
    with report_progress(report):
        try:
            yield
        finally:
            report.end()


class _Preparation:
    """A line that a terminal overwrites; elsewhere a new line now and then."""

    def __init__(self) -> None:
        self._shown = time.monotonic()
        self._overwrites = sys.stderr.isatty()
        self._open = False

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if time.monotonic() - self._shown < (0.5 if self._overwrites else PATIENCE):
            return
        self._shown = time.monotonic()
        share = f"{done / 1e6:,.1f} million characters" if not total else f"{done / total:.0%} of {total:,} characters"
        line = f"{label}: {share}"
        print(f"\r{line:<70}" if self._overwrites else line, end="" if self._overwrites else "\n", file=sys.stderr)
        sys.stderr.flush()
        self._open = self._overwrites

    def end(self) -> None:
        if self._open:
            print(file=sys.stderr)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def perplexity(loss: float) -> str:
    return "huge" if loss >= 20 else f"{math.exp(loss):.2f}"  # in this order: a loss that is no number stays one


def describe(event: e.Event) -> str | None:
    """One line for an event, or None for those a reader need not see."""
    match event:
        case e.Started(step=step, resumed=resumed, parameters=parameters, device=device):
            size = f"{parameters:,} parameters on {device}" if parameters else "counting"
            return "\n".join([f"resumed at step {step}: {size}" if resumed else size, *event.notes])
        case e.Progress(step=step, total=total, values={"restart": restart, "iteration": iteration, "loss": loss}):
            return (
                f"step {step}/{total}  beginning {restart:.0f}, iteration {iteration:.0f}: loss {loss:.5f}  "
                f"{event.tokens_per_second:,.0f} {event.counted}/s  at most {clock(event.seconds_left)} left"
            )
        case e.Progress(step=step, total=total, values=values) if "loss" in values:
            is_plain = event.unit == "nats" and not event.remark
            better_known = f"perplexity {perplexity(values['loss'])}  " if is_plain else ""
            return (
                f"step {step}/{total}  loss {values['loss']:.4f}  {better_known}"
                f"{event.tokens_per_second:,.0f} {event.counted}/s  {clock(event.seconds_left)} left"
            )
        case e.Progress(step=step, total=total, values={"order": order, "ngrams": ngrams}):
            return f"step {step}/{total}  order {order:.0f}: {ngrams:,.0f} n-grams"
        case e.Progress(step=step, total=total, values={"order": order, "fallback": fallback, **discounts}):
            usual = "  (the usual ones: the text is too small or too even to give them)" if fallback else ""
            shown = " / ".join(f"{value:.3f}" for value in discounts.values())
            return f"step {step}/{total}  order {order:.0f}: discounts {shown}{usual}"
        case e.Progress(step=step, total=total, values=values):
            return f"step {step}/{total}  " + "  ".join(f"{name} {value:,.6g}" for name, value in values.items())
        case e.Evaluated(step=step, split=split, metrics=metrics, best=best):
            headlines = next((names for names in HEADLINES if set(names) <= set(metrics)), metrics)
            shown = "  ".join(f"{name} {metrics[name]:.4f}" for name in headlines)
            return f"step {step}  {split}: {shown}{'  (best)' if best else ''}"
        case e.Prepared(step=step, seconds=seconds, shapes=shapes, notes=notes):
            found = f"{shapes} {'shape' if shapes == 1 else 'shapes'} of batches recorded in {seconds:.1f} s"
            return "\n".join(f"step {step}  {line}" for line in ((found,) if shapes else ()) + notes)
        case e.BatchSplit(step=step, rows=rows, microbatches=count):
            return (
                f"step {step}: out of memory, so batches as large as this one of {rows} rows are taken in {count} "
                "microbatches; the updates are the same"
            )
        case e.Skipped(step=step, cause=cause):
            return f"step {step}: the update was skipped, {cause}"
        case e.Damaged(checkpoint=checkpoint, cause=cause):
            return f"checkpoint {checkpoint} is passed over: {cause}"
        case e.Stopped(step=step):
            return f"stopped at step {step}; everything is saved"
        case e.Finished(step=step, reason=reason, seconds=seconds, step_seconds=step_seconds):
            within = "" if step_seconds is None else f", {clock(step_seconds)} of it in steps"
            return f"finished at step {step} after {clock(seconds)}{within}: {reason}"
    return None
