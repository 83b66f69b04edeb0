"""Checkpoints with valid checksums but invalid content are reported, and the previous checkpoint is used."""

import copy
import json
import shutil
from dataclasses import asdict

import pytest
import torch
from tests.train.conftest import Session, TinyTask

from seqloom.core.errors import CheckpointError
from seqloom.core.files import sha256, tensors_from_file, tensors_to_bytes
from seqloom.train.checkpoints import Checkpoint, CheckpointStore
from seqloom.train.events import Damaged
from seqloom.train.state import TrainState

pytestmark = pytest.mark.usefixtures("quick_disk")
FIRST = "embed.weight"
OPTIONS = {"steps": 10, "save_every": 2, "optimizer": "adam"}


def change(parts, path, value):
    """Set the entry at a path. `value` is the new entry, or a function of the previous entry."""
    *above, last = path
    for key in above:
        parts = parts[key]
    parts[last] = value(parts[last]) if callable(value) else value


def newest(run):
    """Return the newest checkpoint of a run."""
    checkpoint = CheckpointStore(run.path, 20).load()
    assert checkpoint is not None
    return checkpoint


def remove(parts, path):
    *above, last = path
    for key in above:
        parts = parts[key]
    del parts[last]


def with_nan(tensor):
    return tensor.clone().index_fill_(0, torch.tensor([0]), torch.nan)


def cut(tensor):
    return tensor.reshape(-1)[:1].clone()


MOMENT = ("optimizer", "state", 0, "exp_avg")
WRONG = {
    "weights cut": (("model", FIRST), cut, "model.embed.weight must have the shape (7, 6); got (1)"),
    "weights NaN": (("model", FIRST), with_nan, "model.embed.weight must contain finite numbers"),
    "weights float64": (("model", FIRST), lambda t: t.double(), "model.embed.weight must be float32; got float64"),
    "weights no tensor": (("model", FIRST), 3, "model.embed.weight must be a tensor; got of type int"),
    "weights lost": (("model", FIRST), None, "model does not have the expected entries: embed.weight missing"),
    "weights extra": (("model", "more"), torch.zeros(2), "more unknown"),
    "moment cut": (MOMENT, cut, "optimizer.state.0.exp_avg must have the shape (7, 6); got (1)"),
    "moment NaN": (MOMENT, with_nan, "optimizer.state.0.exp_avg must contain finite numbers"),
    "moment integer": (MOMENT, lambda t: t.long(), "optimizer.state.0.exp_avg must be float32; got int64"),
    "moment lost": (MOMENT, None, "exp_avg missing"),
    "moment negative": (("optimizer", "state", 0, "exp_avg_sq"), lambda t: t - 1, "must lie between 0 and inf"),
    "step NaN": (
        ("optimizer", "state", 0, "step"),
        torch.tensor(torch.nan),
        "optimizer.state.0.step must contain finite",
    ),
    "step wide": (("optimizer", "state", 0, "step"), torch.ones(9), "optimizer.state.0.step must have the shape ()"),
    "state of nothing": (("optimizer", "state", 99), {}, "99 unknown"),
    "state a list": (("optimizer", "state"), [1], "optimizer must have a state"),
    "groups lost": (("optimizer", "param_groups"), None, "optimizer must have a state and param_groups"),
    "groups of other parameters": (("optimizer", "param_groups", 0, "params"), [5], "optimizer must have a state"),
    "optimizer a number": (("optimizer",), 3, "optimizer must have a state and param_groups"),
    "carry narrow": (("carry", "h"), lambda h: h[:, :2].clone(), "carry.h must have the shape (3, 6); got (3, 2)"),
    "carry of fewer rows": (("carry", "h"), lambda h: h[:1].clone(), "carry.h must have the shape (3, 6); got (1, 6)"),
    "carry NaN": (("carry", "h"), with_nan, "carry.h must contain finite numbers"),
    "carry of integers": (("carry", "h"), lambda h: h.long(), "carry.h must be float32; got int64"),
    "carry of another kind": (("carry",), [1, 2], "carry must be of type dict; got of type list"),
    "scaler": (("scaler",), {"scale": 2.0}, "scaler does not have the expected entries: scale unknown"),
    "part lost": (("carry",), None, "the checkpoint does not have the expected entries: carry missing"),
    "part extra": (("more",), 1, "more unknown"),
    "tally without a key": (("tally", "stale"), None, "tally does not have the expected entries: stale missing"),
    "tally with text": (("tally", "tokens"), "many", "tally.tokens must be of type int; got of type str"),
    "tally with a boolean": (("tally", "stale"), True, "tally.stale must be of type int; got of type bool"),
    "tally NaN": (("tally", "recent_loss"), float("nan"), "tally.recent_loss must be a finite number"),
    "tally of another step": (("tally", "step"), 3, "tally does not describe training at step 8"),
    "tally negative": (("tally", "stale"), -1, "tally does not describe training at step 8"),
    "tally from the future": (("tally", "evaluated"), 99, "tally does not describe training at step 8"),
    "tally without decay": (("tally", "decay"), 0.0, "tally does not describe training at step 8"),
    "best without the metric": (("tally", "best"), {"accuracy": 1.0}, "tally.best must be the metrics"),
    "best of text": (("tally", "best"), {"loss": "low"}, "tally.best must be the metrics"),
    "best a list": (("tally", "best"), [1], "tally.best must be the metrics"),
    "limit of text": (("tally", "limit"), "x", "tally.limit must be a positive whole number"),
    "tally a list": (("tally",), [1], "tally must be of type dict; got of type list"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A complete training run, and the same run stopped at step 8, with checkpoints every two steps."""
    folder = tmp_path_factory.mktemp("finished")
    for name, until in (("whole", None), ("parts", 8)):
        Session(folder / name, **OPTIONS).train(TinyTask(), until=until)
    return folder


@pytest.fixture
def sessions(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return Session(tmp_path / "whole", **OPTIONS), Session(tmp_path / "parts", **OPTIONS)


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_content_is_reported_and_the_previous_checkpoint_is_used(sessions, tiny_task, same, wrong):
    complete, parts = sessions
    path, value, cause = WRONG[wrong]
    store = CheckpointStore(parts.path, 20)
    saved = copy.deepcopy(newest(parts).parts)
    remove(saved, path) if value is None else change(saved, path, value)
    store.save(8, saved)
    events = parts.train(tiny_task(), resume=True)
    assert events[0].step == 6
    assert isinstance(events[1], Damaged)
    assert events[1].checkpoint == "step-8"
    assert cause in events[1].cause
    assert same(parts.checkpoint(10), complete.checkpoint(10))


def rewrite(folder, name, content):
    """Change a file of a checkpoint together with its checksum."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = sha256(content)
    (folder / "manifest.json").write_text(json.dumps(manifest))


DEEP = 100_000
SKELETONS = {
    "nested too deep for JSON": ("[" * DEEP + "]" * DEEP).encode(),
    "nested too deep for a tree": b'{"carry": %s}' % (b'{"list": [' * 400 + b"]}" * 400),
    "a list": b"[]",
    "a number": b"7",
    "no tree": b'{"model": 3}',
    "two kinds in one": b'{"model": {"tuple": [], "list": []}}',
    "an unknown kind": b'{"model": {"set": []}}',
    "a tensor that is not there": b'{"carry": {"tensor": "leaf99"}}',
    "a list for a key": b'{"carry": {"dict": [[[], {"value": 1}]]}}',
    "tensors nobody wants": b'{"model": {"dict": []}}',
}


@pytest.mark.parametrize("name", SKELETONS)
def test_invalid_state_json_is_reported_and_the_previous_checkpoint_is_used(sessions, tiny_task, same, name):
    complete, parts = sessions
    rewrite(parts.path / "checkpoints" / "step-8", "state.json", SKELETONS[name])
    events = parts.train(tiny_task(), resume=True)
    assert [events[0].step, events[1].checkpoint] == [6, "step-8"]
    assert "state.json is damaged" in events[1].cause
    assert same(parts.checkpoint(10), complete.checkpoint(10))


def test_shared_tensor_is_rejected(sessions, tiny_task):
    """If two moments shared memory, both would be updated in place."""
    _, parts = sessions
    folder = parts.path / "checkpoints" / "step-8"
    state = (folder / "state.json").read_text()
    assert '"leaf1"' in state
    rewrite(folder, "state.json", state.replace('"leaf1"', '"leaf2"').encode())
    assert parts.train(tiny_task(), resume=True)[1].checkpoint == "step-8"


def test_truncated_optimizer_tensors_cause_exit_code_4(sessions, tiny_task):
    """Without validation, the optimizer would write beyond the end of the tensors."""
    _, parts = sessions
    for folder in (parts.path / "checkpoints").glob("step-*"):
        tensors = tensors_from_file(folder / "optimizer.safetensors")
        rewrite(folder, "optimizer.safetensors", tensors_to_bytes({name: cut(t) for name, t in tensors.items()}))
    with pytest.raises(CheckpointError, match=r"step-8: .*step-6: .*step-2: ") as caught:
        parts.train(tiny_task(), resume=True)
    assert caught.value.exit_code == 4


def test_incompatible_checkpoint_leaves_the_trainer_unchanged(sessions, tiny_task, same):
    _, parts = sessions
    checkpoint = newest(parts)
    trainer = TrainState(tiny_task(), parts.config, seed=3)
    before = copy.deepcopy(trainer.state_dict())
    wrong = {**checkpoint.parts, "carry": {"h": torch.zeros(3, 2)}}
    with pytest.raises(CheckpointError, match=r"carry\.h"):
        trainer.restore(Checkpoint(8, wrong))
    assert same(trainer.state_dict(), before)
    trainer.restore(checkpoint)
    assert asdict(trainer.tally) == checkpoint.parts["tally"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_momentum_of_every_optimizer_is_validated(session, tiny_task, optimizer):
    run = session(steps=4, save_every=2, evaluate_every=2, optimizer=optimizer, momentum=0.9)
    run.train(tiny_task())
    store = CheckpointStore(run.path, 20)
    saved = newest(run).parts
    state = saved["optimizer"]["state"][1]
    state |= {name: torch.full_like(tensor, torch.nan) for name, tensor in state.items()}
    store.save(4, saved)
    assert run.train(tiny_task(), resume=True)[1].checkpoint == "step-4"


def test_carried_state_of_another_precision_is_converted(sessions, tiny_task):
    """This occurs if a run is moved from a GPU, which computes in bfloat16, to a CPU."""
    _, parts = sessions
    checkpoint = newest(parts)
    trainer = TrainState(tiny_task(), parts.config, seed=3)
    trainer.restore(Checkpoint(8, {**checkpoint.parts, "carry": {"h": checkpoint.parts["carry"]["h"].bfloat16()}}))
    assert trainer.carry["h"].dtype == torch.float32
