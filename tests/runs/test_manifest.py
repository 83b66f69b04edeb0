"""The manifest of a run: every file that an answer or a resume depends on is checked, and an update is crash-safe."""

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
    """A trained language model."""
    for _ in begin(recipe("train.schedule=constant"), tmp_path / "one").events():
        pass
    return tmp_path / "one"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


# --- what is covered --------------------------------------------------------------------------------------------------


def test_every_file_but_log_card_metrics_and_lock_is_covered(run: Path) -> None:
    covered = {*Run.open(run).manifest.files, "recipe.yaml", "manifest.json", "model.safetensors"}
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert {name for name in found - covered if not name.startswith("checkpoints/")} == OUTSIDE


@pytest.mark.parametrize("name", ["recipe.yaml", "manifest.json", "tokenizer.json", "model.safetensors"])
def test_a_flipped_bit_in_a_covered_file_is_refused_by_name(run: Path, name: str) -> None:
    Run.open(run).model("cpu")  # the control
    flip(run / name)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")) as caught:
        Run.open(run).model("cpu")
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def test_a_file_in_a_folder_of_the_run_is_covered(tmp_path: Path) -> None:
    files = {"extra/weights.bin": b"123"}
    made = Run.create(tmp_path / "one", {"task": "x"}, {"labels.json": ["a", "b"]}, files, records={"card.md": b"c"})
    assert set(made.manifest.files) == {"labels.json", "extra/weights.bin"}
    assert Run.open(made.path).file("extra/weights.bin") == b"123"
    (made.path / "extra/weights.bin").write_bytes(b"124")
    with pytest.raises(CheckpointError, match=r"extra/weights\.bin is damaged: it does not match its checksum"):
        Run.open(made.path).file("extra/weights.bin")


def test_log_card_and_metrics_may_change(run: Path) -> None:
    for name in ("log.jsonl", "card.md"):
        (run / name).write_text("anything")
    shutil.rmtree(run / "metrics")
    Run.open(run).model("cpu")


@pytest.mark.parametrize(
    "content", ["", "[]", "7", "{}", '{"files": 3, "recipe": []}', '{"files": {}, "recipe": 3}', "[" * 100_000]
)
def test_a_manifest_that_is_none_is_refused(run: Path, content: str) -> None:
    (run / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        Run.open(run)


# --- weights are tied to the documents --------------------------------------------------------------------------------


def test_the_documents_of_another_run_are_refused_although_they_match_their_manifest(
    recipe: Callable[..., Any], run: Path, tmp_path: Path
) -> None:
    """The same model with the same shapes on other data: every number would be read with the wrong token."""
    other = begin(recipe("data.seed=9", "train.schedule=constant"), tmp_path / "other").run
    for name in (*other.manifest.files, "manifest.json", "recipe.yaml"):
        shutil.copy(other.path / name, run / name)
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another run"):
        Run.open(run).model("cpu")
    with pytest.raises(CheckpointError, match=r"step-12: it belongs to another run"):
        list(resume(run).events())


def test_a_recipe_of_another_model_is_refused_although_it_matches_its_manifest(run: Path) -> None:
    opened = Run.open(run)
    opened.update_recipe({**opened.recipe, "model": {**opened.recipe["model"], "dropout": 0.5}})
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another run"):
        Run.open(run).model("cpu")


def test_weights_are_written_with_one_header_entry_and_the_same_bytes(run: Path, tmp_path: Path) -> None:
    opened = Run.open(run)
    before = (run / "model.safetensors").read_bytes()
    opened.store().save_best(opened.weights())
    assert (run / "model.safetensors").read_bytes() == before
    assert set(tensors_from_file(run / "model.safetensors", opened.identity)) == set(opened.weights())


# --- a recipe that changes --------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def test_a_kill_at_any_moment_of_a_resume_that_changes_the_recipe(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, before = files.write_atomic, Run.open(run).recipe["train"]["steps"]
    seen = []
    for survivors in range(4):

        def dying(path: Path, content: Any, left: list[int] = [survivors]) -> None:  # noqa: B006 (one list each time)
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            write(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(manifest_module, "write_atomic", dying)
            try:
                resume(run, [f"train.steps={before + survivors + 1}"])
            except Killed:
                seen.append(survivors)
        opened = Run.open(run)
        opened.model("cpu")
        assert opened.recipe["train"]["steps"] in (before, *(before + n + 1 for n in range(survivors + 1)))
    assert seen == [0, 1, 2]  # before, between and after its writes; the last time it was not killed
    assert Run.open(run).recipe["train"]["steps"] == before + 4
    assert len(Run.open(run).manifest.recipes) == 1
    events = list(resume(run).events())
    assert isinstance(events[-1], Finished) and events[-1].step == before + 4
    assert not any(isinstance(event, Damaged) for event in events)


def test_a_recipe_from_before_an_update_is_refused(run: Path) -> None:
    old = (run / "recipe.yaml").read_bytes()
    resume(run, ["train.steps=20"])
    (run / "recipe.yaml").write_bytes(old)
    with pytest.raises(CheckpointError, match=r"recipe\.yaml has changed: .*--resume .* KEY=VALUE"):
        Run.open(run)


def test_a_recipe_comes_back_with_the_identity_it_was_created_with(tmp_path: Path) -> None:
    odd = {
        "a": 1e22,
        "b": -0.0,
        "c": 1e-5,
        "d": "no",
        "e": [1, 2.0, [True, None]],
        "f": {"g": "é: #"},
        "train": {"x": 1},
    }
    made = Run.create(tmp_path / "one", odd, {}, weights={"w": torch.ones(2)})
    assert Run.open(made.path).identity == made.identity
    assert torch.equal(Run.open(made.path).weights()["w"], torch.ones(2))


# --- files that cannot be read ----------------------------------------------------------------------------------------


@pytest.fixture
def unprivileged(run: Path) -> Iterator[Path]:
    with as_unprivileged_user(run) as path:
        yield path


@pytest.mark.parametrize("name", ["recipe.yaml", "manifest.json", "tokenizer.json", "model.safetensors", ""])
def test_a_file_that_cannot_be_read_is_not_called_missing(unprivileged: Path, name: str) -> None:
    Run.open(unprivileged).model("cpu")  # the control
    forbid(unprivileged / name)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\)") as caught:
        Run.open(unprivileged).model("cpu")
    assert name in str(caught.value)
    assert "missing" not in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json", ""])
def test_a_checkpoint_that_cannot_be_read_is_not_called_missing(unprivileged: Path, name: str) -> None:
    store = Run.open(unprivileged).store()
    forbid(unprivileged / "checkpoints" / "step-12" / name)
    assert [step for step, _ in store.newest_weights(1)] == [8]
    ((checkpoint, cause),) = store.damaged
    assert checkpoint == "step-12"
    assert "Permission denied" in cause and "missing" not in cause


def test_checkpoints_that_cannot_be_listed_are_not_called_absent(unprivileged: Path) -> None:
    """The training would begin anew."""
    forbid(unprivileged / "checkpoints")
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be read \(Permission denied\)"):
        list(Run.open(unprivileged).store().newest_weights(1))
