"""The manifest of a run covers all files that predictions and resumes need, and updates of it survive crashes."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unprivileged import as_unprivileged_user, forbid

from seqloom.core import files
from seqloom.core.errors import CheckpointError
from seqloom.core.files import tensors_from_file
from seqloom.runs import layout as manifest_module
from seqloom.runs.run import Run
from seqloom.train.events import Damaged, Finished
from seqloom.training import begin, resume

OUTSIDE = {"log.jsonl", "card.md", ".lock", "metrics/dev.json"}


@pytest.fixture
def run(recipe: Callable[..., Any], tmp_path: Path) -> Path:
    """Train a language model."""
    for _ in begin(recipe("train.schedule=constant"), tmp_path / "one").events():
        pass
    return tmp_path / "one"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


# --- covered files ----------------------------------------------------------------------------------------------------


def test_all_files_except_records_and_lock_are_covered(run: Path) -> None:
    covered = {*Run.open(run).manifest.files, "recipe.yaml", "manifest.json", "model.safetensors"}
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert {name for name in found - covered if not name.startswith("checkpoints/")} == OUTSIDE


@pytest.mark.parametrize("name", ["recipe.yaml", "manifest.json", "tokenizer.json", "model.safetensors"])
def test_flipped_bit_is_detected(run: Path, name: str) -> None:
    Run.open(run).model("cpu")  # control
    flip(run / name)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")) as caught:
        Run.open(run).model("cpu")
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def test_file_in_subfolder_is_covered(tmp_path: Path) -> None:
    files = {"extra/weights.bin": b"123"}
    created = Run.create(tmp_path / "one", {"task": "x"}, {"labels.json": ["a", "b"]}, files, records={"card.md": b"c"})
    assert set(created.manifest.files) == {"labels.json", "extra/weights.bin"}
    assert Run.open(created.path).file("extra/weights.bin") == b"123"
    (created.path / "extra/weights.bin").write_bytes(b"124")
    with pytest.raises(CheckpointError, match=r"extra/weights\.bin is damaged: it does not match its checksum"):
        Run.open(created.path).file("extra/weights.bin")


def test_log_card_and_metrics_may_change(run: Path) -> None:
    for name in ("log.jsonl", "card.md"):
        (run / name).write_text("anything")
    shutil.rmtree(run / "metrics")
    Run.open(run).model("cpu")


@pytest.mark.parametrize(
    "content", ["", "[]", "7", "{}", '{"files": 3, "recipe": []}', '{"files": {}, "recipe": 3}', "[" * 100_000]
)
def test_invalid_manifest_is_rejected(run: Path, content: str) -> None:
    (run / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        Run.open(run)


# --- weights are tied to the documents --------------------------------------------------------------------------------


def test_consistent_documents_of_another_run_are_rejected(
    recipe: Callable[..., Any], run: Path, tmp_path: Path
) -> None:
    """The shapes are equal, but the vocabulary differs, so all weights would belong to wrong tokens."""
    other = begin(recipe("data.seed=9", "train.schedule=constant"), tmp_path / "other").run
    for name in (*other.manifest.files, "manifest.json", "recipe.yaml"):
        shutil.copy(other.path / name, run / name)
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another run"):
        Run.open(run).model("cpu")
    with pytest.raises(CheckpointError, match=r"step-12: it belongs to another run"):
        list(resume(run).events())


def test_consistent_recipe_of_another_model_is_rejected(run: Path) -> None:
    opened = Run.open(run)
    opened.update_recipe({**opened.recipe, "model": {**opened.recipe["model"], "dropout": 0.5}})
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another run"):
        Run.open(run).model("cpu")


def test_rewritten_weights_have_same_bytes(run: Path, tmp_path: Path) -> None:
    opened = Run.open(run)
    before = (run / "model.safetensors").read_bytes()
    opened.store().save_best(opened.weights())
    assert (run / "model.safetensors").read_bytes() == before
    assert set(tensors_from_file(run / "model.safetensors", opened.identity)) == set(opened.weights())


# --- a recipe that changes --------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def test_recipe_update_survives_kill_at_any_moment(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, before = files.write_atomic, Run.open(run).recipe["train"]["steps"]
    seen = []
    for survivors in range(4):

        def write_until_killed(path: Path, content: Any, left: list[int] = [survivors]) -> None:  # noqa: B006 (one list each time)
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            write(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(manifest_module, "write_atomic", write_until_killed)
            try:
                resume(run, [f"train.steps={before + survivors + 1}"])
            except Killed:
                seen.append(survivors)
        opened = Run.open(run)
        opened.model("cpu")
        assert opened.recipe["train"]["steps"] in (before, *(before + n + 1 for n in range(survivors + 1)))
    assert seen == [0, 1, 2]  # killed before, between and after the writes; the last attempt was not killed
    assert Run.open(run).recipe["train"]["steps"] == before + 4
    assert len(Run.open(run).manifest.recipes) == 1
    events = list(resume(run).events())
    assert isinstance(events[-1], Finished) and events[-1].step == before + 4
    assert not any(isinstance(event, Damaged) for event in events)


def test_outdated_recipe_is_rejected(run: Path) -> None:
    old = (run / "recipe.yaml").read_bytes()
    resume(run, ["train.steps=20"])
    (run / "recipe.yaml").write_bytes(old)
    with pytest.raises(CheckpointError, match=r"recipe\.yaml has changed: .*--resume .* KEY=VALUE"):
        Run.open(run)


def test_identity_is_unchanged_after_reopening(tmp_path: Path) -> None:
    odd = {
        "a": 1e22,
        "b": -0.0,
        "c": 1e-5,
        "d": "no",
        "e": [1, 2.0, [True, None]],
        "f": {"g": "é: #"},
        "train": {"x": 1},
    }
    created = Run.create(tmp_path / "one", odd, {}, weights={"w": torch.ones(2)})
    assert Run.open(created.path).identity == created.identity
    assert torch.equal(Run.open(created.path).weights()["w"], torch.ones(2))


# --- files that cannot be read ----------------------------------------------------------------------------------------


@pytest.fixture
def unprivileged(run: Path) -> Iterator[Path]:
    with as_unprivileged_user(run) as path:
        yield path


@pytest.mark.parametrize("name", ["recipe.yaml", "manifest.json", "tokenizer.json", "model.safetensors", ""])
def test_unreadable_file_is_not_reported_as_missing(unprivileged: Path, name: str) -> None:
    Run.open(unprivileged).model("cpu")  # control
    forbid(unprivileged / name)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\)") as caught:
        Run.open(unprivileged).model("cpu")
    assert name in str(caught.value)
    assert "missing" not in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json", ""])
def test_unreadable_checkpoint_is_not_reported_as_missing(unprivileged: Path, name: str) -> None:
    store = Run.open(unprivileged).store()
    forbid(unprivileged / "checkpoints" / "step-12" / name)
    assert [step for step, _ in store.newest_weights(1)] == [8]
    ((checkpoint, cause),) = store.damaged
    assert checkpoint == "step-12"
    assert "Permission denied" in cause and "missing" not in cause


def test_unreadable_checkpoint_folder_is_reported(unprivileged: Path) -> None:
    """Otherwise, training would start from random weights."""
    forbid(unprivileged / "checkpoints")
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be read \(Permission denied\)"):
        list(Run.open(unprivileged).store().newest_weights(1))
