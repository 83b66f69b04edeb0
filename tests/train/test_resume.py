"""Training for 2N steps equals N steps, save, load and N steps, bit for bit. The negative controls must differ."""

import itertools
import os

import pytest
import torch

from seqloom.train import loop
from seqloom.train.checkpoints import Checkpoint, CheckpointStore
from seqloom.train.events import Evaluated, Finished, Progress, Saved, Skipped, Started, Stopped
from seqloom.train.state import TrainState
from seqloom.train.stop import Stop

pytestmark = pytest.mark.usefixtures("quick_disk")

CASES = {
    "sgd": {"optimizer": "sgd", "lr": 0.5},
    "sgd with momentum": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "schedule": "cosine", "warmup": 3, "min_lr": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.1, "schedule": "inverse-sqrt", "warmup": 4},
    "plateau, early stopping, accumulation": {
        "lr": 0.3,
        "schedule": "plateau",
        "accumulate_steps": 3,
        "evaluate_every": 2,
        "patience": 4,
        "steps": 30,
    },
}
STEPS = (1, 4, 7, 10)  # in the first epoch, one step before its end, in the second epoch, and at the end of an epoch


def end(session):
    """Return the last step of a training session."""
    return max(int(path.name.removeprefix("step-")) for path in (session.path / "checkpoints").glob("step-*"))


def curve(events):
    """Return the values that do not depend on the clock or on stops."""
    return [
        (
            type(event),
            event.step,
            dict(event.values) if isinstance(event, Progress) else getattr(event, "metrics", None),
        )
        for event in events
        if isinstance(event, Progress | Evaluated | Skipped)
    ]


def call_before(first, method, at=1):
    """Return `method` with a call of `first` before its call number `at`."""
    calls = itertools.count(1)

    def call(*arguments):
        if next(calls) == at:
            first()
        return method(*arguments)

    return call


@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_training_is_bit_identical(session, tiny_task, same, case):
    complete = session("whole", **CASES[case])
    events = complete.train(tiny_task())
    assert isinstance(events[-1], Finished)
    for step in STEPS:
        parts = session(f"parts-{step}", **CASES[case])
        before = parts.train(tiny_task(), until=step)
        assert isinstance(before[-1], Stopped)
        assert before[-1].step == step
        after = parts.train(tiny_task(), resume=True)
        assert after[0] == Started(
            step, complete.config.steps, events[0].parameters, "cpu", resumed=True, machine=events[0].machine
        )
        assert end(parts) == end(complete)
        assert same(parts.checkpoint(end(complete)), complete.checkpoint(end(complete)))
        assert same(parts.best(), complete.best())
        assert same(curve(before + after), curve(events))


@pytest.mark.parametrize("case", ["sgd", "adam", "adamw"])
def test_extended_training_is_resumed_exactly(session, tiny_task, same, case):
    """Extend 7 steps to 14 with and without a stop. Cosine depends on the new length; other rates do not."""
    extended, events = {}, {}
    for name, stop in (("whole", None), ("parts", 10)):
        session(name, **CASES[case], steps=7).train(tiny_task())
        extended[name] = session(name, **CASES[case])
        events[name] = extended[name].train(tiny_task(), resume=True, until=stop)
        if stop is not None:
            assert isinstance(events[name][-1], Stopped)
            events[name] += extended[name].train(tiny_task(), resume=True)
    assert same(extended["parts"].checkpoint(14), extended["whole"].checkpoint(14))
    assert same(curve(events["parts"]), curve(events["whole"]))
    new = session("new", **CASES[case])
    rates = {
        name: [event.values["learning_rate"] for event in trained if isinstance(event, Progress) and event.step > 7]
        for name, trained in (("extended", events["whole"]), ("new", new.train(tiny_task())))
    }
    assert rates["extended"] == rates["new"]
    is_equal = same(extended["whole"].checkpoint(14)["model.safetensors"], new.checkpoint(14)["model.safetensors"])
    assert is_equal == (CASES[case].get("schedule") != "cosine")  # the first 7 steps of cosine differed


def test_plateau_settings_lower_the_rate(session, tiny_task):
    """Control: the test above covers a lowered rate."""
    complete = session(**CASES["plateau, early stopping, accumulation"])
    events = complete.train(tiny_task())
    tally = complete.checkpoint(events[-1].step)["state.json"]["tally"]["dict"]
    assert dict(tally)["decay"]["value"] < 1
    assert events[-1].reason.startswith("no improvement in 4")
    assert events[-1].step < 30
    assert max(STEPS) < events[-1].step


def test_repeated_stops_and_resumes_are_bit_identical(session, tiny_task, same):
    complete, parts = session("whole"), session("parts")
    complete.train(tiny_task())
    for step in range(1, 15):
        parts.train(tiny_task(), until=step, resume=True)
    assert isinstance(parts.train(tiny_task(), resume=True)[-1], Finished)
    assert same(parts.checkpoint(14), complete.checkpoint(14))


def test_log_window_may_include_an_interruption(session, tiny_task, same):
    """The mean loss at step 10 is that of steps 6 … 10, although training stopped after step 7."""
    complete, parts = session("whole", log_every=5), session("parts", log_every=5)
    events = complete.train(tiny_task())
    stop, task = Stop(), tiny_task()
    task.batch = call_before(stop.request, task.batch, at=7)
    before = list(parts.events(task, stop=stop))
    assert before[-1] == Stopped(7)
    after = parts.train(tiny_task(), resume=True)
    assert same(curve(before + after), curve(events))


# --- controls: each one omits a part of the state, and must be detected -----------------------------------------------


def differs(session, tiny_task, same, **options):
    complete, parts = session("whole", **options), session("parts", **options)
    complete.train(tiny_task())
    parts.train(tiny_task(), until=7)
    parts.train(tiny_task(), resume=True)
    return not same(parts.checkpoint(14), complete.checkpoint(14))


def forget(monkeypatch, **replaced):
    restore = TrainState.restore

    def restore_incompletely(trainer, checkpoint):
        restore(trainer, Checkpoint(checkpoint.step, {**checkpoint.parts, **replaced}))

    monkeypatch.setattr(TrainState, "restore", restore_incompletely)


def test_resuming_with_the_complete_state_is_exact(session, tiny_task, same):
    assert not differs(session, tiny_task, same)


def test_resuming_without_the_carry_changes_the_results(session, tiny_task, same, monkeypatch):
    forget(monkeypatch, carry=None)
    assert differs(session, tiny_task, same)


def test_resuming_without_the_optimizer_state_changes_the_results(session, tiny_task, same, monkeypatch):
    restore = TrainState.restore

    def restore_incompletely(trainer, checkpoint):
        fresh = trainer.optimizer.state_dict()
        restore(trainer, checkpoint)
        trainer.optimizer.load_state_dict(fresh)

    monkeypatch.setattr(TrainState, "restore", restore_incompletely)
    assert differs(session, tiny_task, same)


def test_resuming_without_seeding_each_step_changes_the_results(session, tiny_task, same, monkeypatch):
    monkeypatch.setattr(loop, "seed_step", lambda *_: None)
    assert differs(session, tiny_task, same)


def test_resuming_without_the_lowered_rate_changes_the_results(session, tiny_task, same, monkeypatch):
    restore = TrainState.restore

    def restore_incompletely(trainer, checkpoint):
        restore(trainer, checkpoint)
        trainer.tally.decay = 1.0

    monkeypatch.setattr(TrainState, "restore", restore_incompletely)
    assert differs(session, tiny_task, same, schedule="plateau", lr=0.3, evaluate_every=1)


def test_another_seed_gives_different_weights(session, tiny_task, same):
    first, second = session("one"), session("other")
    list(first.events(tiny_task(), seed=1))
    list(second.events(tiny_task(), seed=2))
    assert not same(first.checkpoint(14), second.checkpoint(14))


# --- influences that must not change results --------------------------------------------------------------------------


def test_evaluations_do_not_change_training(session, tiny_task, same):
    never, always = session("never", evaluate_every=1000), session("always", evaluate_every=1, save_every=7)
    never.train(tiny_task())
    always.train(tiny_task())
    a, b = never.checkpoint(14), always.checkpoint(14)
    for name in ("model.safetensors", "optimizer.safetensors", "carry.safetensors"):
        assert same(a[name], b[name]), name


@pytest.mark.parametrize("when", ["evaluating", "saving", "training"])
def test_stop_request_in_any_phase_saves_and_resumes_exactly(session, tiny_task, same, monkeypatch, when):
    complete, parts = session("whole"), session("parts")
    events = complete.train(tiny_task())
    stop, task = Stop(), tiny_task()
    if when == "evaluating":
        task.on_evaluate = stop.request
    elif when == "training":
        task.loss = call_before(stop.request, task.loss, at=8)
    else:
        monkeypatch.setattr(CheckpointStore, "_fill", call_before(stop.request, CheckpointStore._fill))
    before = list(parts.events(task, stop=stop))
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    assert isinstance(before[-1], Stopped)
    assert isinstance(before[-2], Saved)
    assert before[-1].step == before[-2].step == (8 if when == "training" else 5)
    evaluated = [event.step for event in before if isinstance(event, Evaluated)]
    assert evaluated == ([] if when == "evaluating" else [5])  # interrupted immediately, and run after the resume
    after = parts.train(tiny_task(), resume=True)
    assert isinstance(after[-1], Finished)
    assert same(parts.checkpoint(14), complete.checkpoint(14))
    assert same(parts.best(), complete.best())
    assert same(curve(before + after), curve(events))


def test_training_stopped_before_the_first_step_resumes_exactly(session, tiny_task, same):
    complete, parts = session("whole"), session("parts")
    complete.train(tiny_task())
    stop = Stop()
    stop.request()
    assert [type(event) for event in parts.events(tiny_task(), stop=stop)] == [Started, Stopped]
    parts.train(tiny_task(), resume=True)
    assert same(parts.checkpoint(14), complete.checkpoint(14))


def test_training_stopped_during_the_last_save_finishes_when_resumed(session, tiny_task, monkeypatch):
    stop, run = Stop(), session()
    for event in run.events(tiny_task(), stop=stop):
        if isinstance(event, Evaluated) and event.step == 14:
            stop.request()
    assert event == Stopped(14)
    after = run.train(tiny_task(), resume=True)
    assert [type(event) for event in after] == [Started, Finished]


def test_incompatible_checkpoint_is_rejected(session, tiny_task, monkeypatch):
    from seqloom.core.errors import CheckpointError

    run = session(steps=2)
    run.train(tiny_task())
    forget(monkeypatch, model={"embed.weight": torch.zeros(2, 2)})
    with pytest.raises(CheckpointError, match="step-2: it does not match the model") as caught:
        run.train(tiny_task(), resume=True)
    assert caught.value.exit_code == 4


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_deterministic_gpu_training_resumes_exactly(session, tiny_task, same, precision):
    options = {"device": "cuda", "precision": precision, "deterministic": True, "steps": 20}
    complete, parts = session("whole", **options), session("parts", **options)
    try:
        complete.train(tiny_task())
        parts.train(tiny_task(), until=7)
        parts.train(tiny_task(), resume=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert same(parts.checkpoint(20), complete.checkpoint(20))
