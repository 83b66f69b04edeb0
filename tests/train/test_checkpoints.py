"""Checkpoints are restored exactly, damage is reported and skipped, and a crash or a full disk loses no saved data."""

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqloom.core import files
from seqloom.core.errors import CheckpointError, ResourceError
from seqloom.core.tree import GrowingBuffer
from seqloom.train.checkpoints import CheckpointStore

pytestmark = pytest.mark.usefixtures("quick_disk")


def parts(value, step=0):
    return {
        "model": {"weight": torch.full((2, 3), float(value)), "bias": torch.arange(3.0) + value},
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(value))}},
            "param_groups": [{"lr": value, "betas": (0.9, 1)}],
        },
        "carry": ({"h": torch.ones(2, 2) * value},),
        "tally": {"step": step, "best": None},
    }


def value_of(checkpoint):
    """Return the parts of a checkpoint after checking that it is complete."""
    value = checkpoint.parts["model"]["weight"][0, 0].item()
    expected = parts(value, checkpoint.parts["tally"]["step"])
    assert list(checkpoint.parts) == list(expected)
    assert torch.equal(checkpoint.parts["model"]["bias"], expected["model"]["bias"])
    assert torch.equal(checkpoint.parts["optimizer"]["state"][0]["step"], expected["optimizer"]["state"][0]["step"])
    assert checkpoint.parts["optimizer"]["param_groups"][0]["lr"] == value
    assert torch.equal(checkpoint.parts["carry"][0]["h"], expected["carry"][0]["h"])
    return value


def loaded_step(store):
    checkpoint = store.load()
    assert checkpoint is not None
    return checkpoint.step


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


@pytest.fixture
def two(tmp_path):
    """A store with the checkpoints of step 5 (value 1) and step 8 (value 2)."""
    (tmp_path / "run").mkdir()
    store = CheckpointStore(tmp_path / "run", keep=2)
    store.save(5, parts(1, 5))
    store.save(8, parts(2, 8))
    return store


# --- saving and loading -----------------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
TENSORS = st.builds(
    lambda shape, dtype, seed: (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 1000),
)
GROWING = st.builds(
    lambda n: GrowingBuffer(torch.arange(2.0 * n).reshape(2, n), torch.tensor([n, 0])), st.integers(1, 4)
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TREES = st.recursive(
    TENSORS | GROWING | VALUES,
    lambda tree: (
        st.lists(tree, max_size=3)
        | st.lists(tree, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), tree, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(first=TREES, second=TREES)
def test_any_tree_round_trips_exactly(tmp_path_factory, same, first, second):
    folder = tmp_path_factory.mktemp("trees")
    CheckpointStore(folder).save(3, {"first": first, "second": second})
    loaded = CheckpointStore(folder).load()
    assert loaded is not None
    assert loaded.step == 3
    assert same(loaded.parts, {"first": first, "second": second})


def test_loading_without_checkpoints_returns_none(tmp_path):
    store = CheckpointStore(tmp_path)
    assert (store.load(), store.damaged) == (None, [])


def test_checkpoint_contains_no_pickle(two):
    for path in two.folder.rglob("*"):
        assert path.is_dir() or path.suffix in (".json", ".safetensors")
        if path.suffix == ".json":
            json.loads(path.read_text())


# --- number of kept checkpoints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_newest_checkpoints_are_kept(tmp_path, keep):
    store = CheckpointStore(tmp_path, keep)
    for step in (2, 4, 9, 10, 100):  # sorted by number, so that step-9 is older than step-10
        store.save(step, parts(step))
    assert names(store) == sorted(["latest.json", *(f"step-{step}" for step in (4, 9, 10, 100)[-keep:])])
    assert loaded_step(store) == 100


def test_damaged_checkpoint_does_not_displace_an_intact_checkpoint(two):
    (two.folder / "step-8" / "state.json").unlink()
    store = CheckpointStore(two.run, keep=2)
    assert loaded_step(store) == 5
    store.save(9, parts(3))
    assert names(store) == ["latest.json", "step-5", "step-9"]


def test_damaged_checkpoint_is_replaced_when_its_step_is_saved_again(two):
    (two.folder / "step-8" / "state.json").unlink()
    store = CheckpointStore(two.run, keep=2)
    store.load()
    store.save(8, parts(7))
    store.save(11, parts(9))
    assert names(store) == ["latest.json", "step-11", "step-8"]
    assert value_of(CheckpointStore(two.run)._read(8)) == 7


def test_surplus_checkpoint_of_a_killed_run_is_deleted_when_it_is_resumed(two):
    """A save that is interrupted after writing latest.json has not removed a checkpoint."""
    shutil.copytree(two.folder / "step-5", two.run / "copy")
    two.save(11, parts(3))
    shutil.move(two.run / "copy", two.folder / "step-5")
    assert names(two) == ["latest.json", "step-11", "step-5", "step-8"]
    assert value_of(CheckpointStore(two.run, keep=2).load()) == 3
    assert names(two) == ["latest.json", "step-11", "step-8"]


def test_loading_keeps_damaged_and_newer_checkpoints(two):
    two.save(11, parts(3))
    (two.folder / "step-11" / "state.json").unlink()
    assert value_of(CheckpointStore(two.run, keep=1).load()) == 2
    assert names(two) == ["latest.json", "step-11", "step-8"]


# --- damage -----------------------------------------------------------------------------------------------------------

FILES = ["model.safetensors", "optimizer.safetensors", "carry.safetensors", "state.json", "manifest.json"]
DAMAGE = {
    "flipped first byte": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 4]) + path.read_bytes()[1:]),
    "flipped last byte": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "deleted": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_previous_checkpoint_is_used_and_damaged_checkpoint_is_reported(two, name, damage):
    DAMAGE[damage](two.folder / "step-8" / name)
    store = CheckpointStore(two.run)
    assert value_of(store.load()) == 1
    ((checkpoint, cause),) = store.damaged
    assert checkpoint == "step-8"
    assert name in cause


GARBAGE = [
    "",
    "null",
    "[]",
    "{}",
    '"x"',
    '{"format": 1, "step": 8}',
    '{"format": 1, "step": 8, "files": {}}',
    '{"format": 1, "step": 8, "files": []}',
    '{"format": 1, "step": 8, "files": [1]}',
    '{"format": 1, "step": 8, "files": "x"}',
    '{"format": 1, "step": 8, "files": {"../step-5/state.json": "0"}}',
    '{"format": 1, "step": 8, "files": {"state.json": 7}}',
    "\udcff",
]


@pytest.mark.parametrize("text", GARBAGE)
def test_invalid_manifest_is_reported(two, text):
    (two.folder / "step-8" / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    store = CheckpointStore(two.run)
    assert value_of(store.load()) == 1
    assert [name for name, _ in store.damaged] == ["step-8"]


def test_manifest_of_another_step_is_reported(two):
    """The files match their manifest, but the manifest describes another checkpoint."""
    shutil.rmtree(two.folder / "step-8")
    shutil.copytree(two.folder / "step-5", two.folder / "step-8")
    store = CheckpointStore(two.run)
    assert loaded_step(store) == 5
    assert [name for name, _ in store.damaged] == ["step-8"]


@settings(max_examples=100)
@given(which=st.integers(0, 4), position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_flipped_bit_in_any_file_is_detected(tmp_path_factory, which, position, bit):
    folder = tmp_path_factory.mktemp("flip")
    store = CheckpointStore(folder)
    store.save(5, parts(1))
    store.save(8, parts(2))
    path = store.folder / "step-8" / FILES[which]
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1 << bit
    path.write_bytes(content)
    assert value_of(store.load()) == 1
    assert [name for name, _ in store.damaged] == ["step-8"]
    shutil.rmtree(folder)


def test_newer_format_is_named(two):
    path = two.folder / "step-8" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    store = CheckpointStore(two.run)
    assert value_of(store.load()) == 1
    assert "format is 2" in store.damaged[0][1]
    assert "reads format 1" in store.damaged[0][1]


def test_error_lists_every_damaged_checkpoint(two):
    (two.folder / "step-5" / "model.safetensors").write_bytes(b"x")
    (two.folder / "step-8" / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"step-8: manifest.json.*step-5: model.safetensors") as caught:
        CheckpointStore(two.run).load()
    assert caught.value.exit_code == 4


def test_missing_checkpoint_is_reported(two):
    shutil.rmtree(two.folder / "step-8")
    store = CheckpointStore(two.run)
    assert value_of(store.load()) == 1
    assert [name for name, _ in store.damaged] == ["step-8"]
    shutil.rmtree(two.folder / "step-5")
    with pytest.raises(CheckpointError, match="step-8"):  # training does not start again without a message
        store.load()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": "x"}', '{"step": 1e999}', '{"step": null}', '{"step": 99}'])
def test_damaged_latest_json_loses_no_data(two, text):
    (two.folder / "latest.json").write_text(text)
    store = CheckpointStore(two.run)
    assert value_of(store.load()) == 2
    assert len(store.damaged) == 1


def test_newest_checkpoint_is_loaded_without_latest_json(two):
    (two.folder / "latest.json").unlink()
    assert value_of(CheckpointStore(two.run).load()) == 2


# --- crashes and full disks at every point of a save ------------------------------------------------------------------


class Crash(BaseException):
    """Raised to simulate a crash of the process. Nothing after this point happens."""


class Disk:
    """Count changes of the disk, and let the k-th change fail. A crash is permanent; a full disk fails once."""

    MENDING = ("unlink", "rmdir")  # operations that succeed on a full disk

    def __init__(self, monkeypatch, fail_at, error=None):
        self.count, self.fail_at, self.error = 0, fail_at, error
        self.last = ""
        for name in ("replace", "rename", "fsync", "mkdir", *self.MENDING):
            monkeypatch.setattr(os, name, self._watch(name, getattr(os, name)))
        monkeypatch.setattr(files, "open", self._open, raising=False)

    def _fails(self, name):
        if self.error is not None and name in self.MENDING:
            return False
        self.count += 1
        if self.count == self.fail_at:
            self.last = name
        return self.count == self.fail_at or (self.error is None and self.count > self.fail_at)

    def _failure(self):
        return Crash() if self.error is None else OSError(self.error, os.strerror(self.error))

    def _watch(self, name, real):
        def operation(*arguments, **options):
            if self._fails(name):
                raise self._failure()
            return real(*arguments, **options)

        return operation

    def _open(self, path, mode="r", **options):
        """A failing write leaves half of its bytes on disk."""
        if mode == "rb":
            return open(path, mode, **options)
        assert mode == "wb"
        file = open(path, mode, buffering=0, **options)  # noqa: SIM115 (closed by the returned object)
        disk, real = self, file.write

        class Torn:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                file.close()

            def write(self, content):
                if disk._fails("write"):
                    real(content[: len(content) // 2])
                    raise disk._failure()
                return real(content)

            def flush(self):
                pass

            def fileno(self):
                return file.fileno()

        return Torn()


def prepare(path, situation):
    """Create the state of the disk before the save. Return the value that it contains: None or 1."""
    store = CheckpointStore(path, keep=1 if "only" in situation else 2)
    if situation != "first":
        store.save(8 if "again" in situation else 5, parts(1))
    if situation == "over a relic":  # as after a crash between the rename and the update of latest.json
        store.save(8, parts(7))
        (store.folder / "latest.json").write_text('{"step": 5}')
    return store


OLD: dict[str, set[int | None]] = {"first": {None}, "over a relic": {1, 7}}
SITUATIONS = ["first", "next", "next, only one kept", "again", "again, only one kept", "over a relic"]


def outcomes(tmp_path, monkeypatch, situation, error):
    """Save repeatedly, with a failure at each point in turn. Yield the point, the error and the loaded value."""
    template = tmp_path / "template"
    template.mkdir()
    prepare(template, situation)
    for point in itertools.count(1):
        path = tmp_path / f"at-{point}"
        shutil.copytree(template, path)
        keep = 1 if "only" in situation else 2
        with monkeypatch.context() as patch:
            disk = Disk(patch, point, error)
            raised = None
            try:
                CheckpointStore(path, keep).save(8, parts(2))
            except (Crash, ResourceError, OSError) as failure:
                raised = failure
        if disk.count < point:
            return
        store = CheckpointStore(path, keep)
        loaded = store.load()
        value = None if loaded is None else value_of(loaded)
        yield point, disk.last, raised, store, value
        shutil.rmtree(path)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_crash_at_any_point_leaves_the_old_or_the_new_checkpoint(tmp_path, monkeypatch, situation):
    old = OLD.get(situation, {1})
    values, operations = [], set()
    for _point, operation, raised, store, value in outcomes(tmp_path, monkeypatch, situation, None):
        assert isinstance(raised, Crash) or value == 2  # rmtree may ignore errors in the last deletions
        assert value in old | {2}
        assert store.damaged == []
        values.append(value)
        operations.add(operation)
        store.save(11, parts(3))  # leftover files do not prevent the save
        assert value_of(store.load()) == 3
        assert not [name for name in names(store) if name.startswith(".")]
    assert len(values) > 12
    assert {"write", "fsync", "replace", "mkdir"} <= operations
    changes = sum(a != b for a, b in itertools.pairwise(values))
    assert values[-1] == 2, "after the last point the new one is there"
    assert changes <= 2 if situation == "over a relic" else changes == 1, values


@pytest.mark.parametrize("situation", SITUATIONS)
def test_full_disk_at_any_point_is_reported_and_loses_no_data(tmp_path, monkeypatch, situation):
    old = OLD.get(situation, {1})
    count = 0
    for point, operation, raised, store, value in outcomes(tmp_path, monkeypatch, situation, errno.ENOSPC):
        assert isinstance(raised, ResourceError), (point, operation, raised)
        assert raised.exit_code == 5
        assert "disk is full" in str(raised)
        assert value in old | {2}
        assert store.damaged == []
        store.save(8, parts(3))
        assert value_of(store.load()) == 3
        assert not [name for name in names(store) if name.startswith(".")]
        count += 1
    assert count > 12


def fixed_name(path):
    """Return the name of a file without the random part of a temporary name."""
    return re.sub(r"\.[0-9a-f]{16}\.tmp$", ".tmp", Path(path).name)


def flushed_name(handle):
    return fixed_name(os.readlink(f"/proc/self/fd/{handle}"))


def test_latest_json_is_written_last(tmp_path, monkeypatch):
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see which file is flushed")
    order: list[str] = []

    def moving(real):
        def move(source, target):
            order.append(f"to {fixed_name(target)}")
            real(source, target)

        return move

    monkeypatch.setattr(os, "fsync", lambda handle: order.append(f"flush {flushed_name(handle)}"))
    monkeypatch.setattr(os, "replace", moving(os.replace))
    monkeypatch.setattr(os, "rename", moving(os.rename))
    store = CheckpointStore(tmp_path, keep=1)
    store.save(5, parts(1))
    order.clear()
    store.save(8, parts(2))
    written = [f"flush {name}" for name in FILES]
    assert order[:5] == written
    assert order[5:] == [
        "flush .step-8.tmp",
        "to step-8",
        "flush checkpoints",
        "flush .latest.json.tmp",
        "to latest.json",
        "flush checkpoints",
        "to .step-5.tmp",
    ]


def test_best_weights_are_replaced_atomically(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save_best({"w": torch.ones(2)})
    for point in itertools.count(1):
        with monkeypatch.context() as patch:
            disk = Disk(patch, point)
            with contextlib.suppress(Crash):
                store.save_best({"w": torch.zeros(2)})
        weights = files.tensors_from_file(tmp_path / "model.safetensors")["w"].tolist()
        assert weights in ([1, 1], [0, 0])
        if disk.count < point:
            break
        store.save_best({"w": torch.ones(2)})
    assert weights == [0, 0]
    assert point > 3
