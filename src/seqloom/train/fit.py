"""Training by gradient. Nothing here is about any particular model or task.

The loop is a generator of events; what it moves is in `seqloom.train.trainer`.
"""

import time
from collections.abc import Iterator, Sequence

from seqloom.core.errors import DivergedError, Interrupted
from seqloom.core.protocols import Task
from seqloom.train.checkpoints import CheckpointStore
from seqloom.train.config import FitConfig
from seqloom.train.events import Damaged, Evaluated, Event, Finished, Halved, Prepared, Saved, Skipped, Started, Stopped
from seqloom.train.meter import Meter
from seqloom.train.stop import Stop
from seqloom.train.threads import threads_restored
from seqloom.train.trainer import Trainer, Update


def fit(
    task: Task, config: FitConfig, store: CheckpointStore, *, seed: int, stop: Stop | None = None, resume: bool = False
) -> Iterator[Event]:
    """Train, yielding events as it goes; with `resume`, go on from the newest intact checkpoint."""
    with threads_restored():
        yield from _fit(task, config, store, seed, stop or Stop(), resume)


def _fit(task: Task, config: FitConfig, store: CheckpointStore, seed: int, stop: Stop, resume: bool) -> Iterator[Event]:
    trainer = Trainer(task, config, seed)
    checkpoint = store.load(trainer.restore) if resume else None
    tally = trainer.tally
    parameters = sum(p.numel() for p in trainer.model.parameters())
    yield Started(tally.step, trainer.total, parameters, str(trainer.device), checkpoint is not None, trainer.notes())
    for name, cause in store.damaged:
        yield Damaged(tally.step, name, cause)

    began, meter = time.perf_counter(), Meter(tally.tokens)
    unsaved = False  # has anything happened since the newest checkpoint?
    while True:
        try:
            if trainer.due(config.evaluate_every) and tally.evaluated != tally.step:
                with stop.interruptible():
                    metrics = trainer.evaluate()
                best, unsaved = trainer.judge(metrics), True
                if best:
                    store.save_best(trainer.model.state_dict())
                yield Evaluated(tally.step, "dev", metrics, best)
        except Interrupted:
            pass  # the evaluation is still due, and will be made after the resume
        ending = trainer.exhausted() if not stop.requested else None
        due = trainer.due(config.save_every or config.evaluate_every)
        if unsaved and (due or stop.requested or ending):
            unsaved, passing = False, not (due or ending)  # a stop is no reason to keep other checkpoints in the end
            yield Saved(tally.step, store.save(tally.step, trainer.state(), passing))
        if stop.requested:
            yield from _skipped(tally.step, trainer.settle())
            yield Stopped(tally.step)
            return
        if ending:
            break
        with meter:
            updates = trainer.advance()
        unsaved = True
        meter.add(tally.tokens, trainer.preparation.seconds)
        for rows, parts in trainer.tell_halved():
            yield Halved(tally.step, rows, parts)
        if trainer.preparation.telling:
            yield Prepared(tally.step, *trainer.preparation.told())
        yield from _skipped(tally.step, updates)
        if trainer.diverged is not None:
            raise DivergedError(_diverged(tally.step, trainer.diverged, config.max_skips))
        if tally.step % config.log_every == 0 or tally.step == trainer.total:
            yield meter.progress(tally.step, trainer.total, trainer.report(updates[-1]), task)
    seconds = time.perf_counter() - began
    measured = parameters, meter.speed(), seconds, tally.memory or None, meter.seconds
    yield Finished(tally.step, ending, tally.best_step, tally.best or {}, *measured)


def _skipped(step: int, updates: Sequence[Update]) -> Iterator[Skipped]:
    """Those of the last updates, up to this step, that were not made."""
    for number, update in enumerate(updates, step - len(updates) + 1):
        if update.cause is not None:
            yield Skipped(number, update.cause)


def _diverged(step: int, cause: str, skips: int) -> str:
    return (
        f"Training diverged at step {step}: {cause}, {skips} updates in a row. None of them reached the "
        "weights. Train anew with a smaller train.lr, a smaller train.clip or a longer train.warmup."
    )
