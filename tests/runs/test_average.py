"""Weight averaging: the mean is exact, and the averaged run is written completely or not at all."""

import errno
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seqloom.core import files
from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.predict.ensembles import average_runs
from seqloom.runs import average as averages
from seqloom.runs import layout
from seqloom.runs.average import AveragedWeights, mean
from seqloom.runs.run import Run
from seqloom.training import begin

# --- the mean ---------------------------------------------------------------------------------------------------------


def test_mean_equals_sum_divided_by_count() -> None:
    draw = torch.Generator().manual_seed(1)
    parts = [{"a": torch.randn(4, 3, generator=draw), "b": torch.randn(5, generator=draw)} for _ in range(7)]
    averaged = mean(iter(parts))
    for name in ("a", "b"):
        expected = torch.stack([part[name].double() for part in parts]).mean(0).float()
        assert averaged[name].dtype == torch.float32
        assert torch.equal(averaged[name], expected)


def test_mean_is_computed_in_double_precision() -> None:
    parts = [{"w": torch.tensor([value])} for value in (1e8, 1.0, -1e8)]
    assert mean(parts)["w"].item() == pytest.approx(1 / 3, rel=1e-6)
    assert (parts[0]["w"] + parts[1]["w"] + parts[2]["w"]).item() == 0.0  # in single precision, the sum is 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_mean_of_equal_weights_is_unchanged(dtype: torch.dtype, count: int) -> None:
    weights = torch.randn(50, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    if dtype == torch.float64:  # the sum of ten numbers needs four bits more than float64 has
        weights = weights.float().double()
    averaged = mean([{"w": weights}] * count)["w"]
    assert averaged.dtype == dtype and torch.equal(averaged, weights)


def test_integers_are_not_averaged() -> None:
    parts = [{"w": torch.tensor([value]), "counts": torch.tensor([3, 4])} for value in (1.0, 2.0)]
    averaged = mean(parts)
    assert averaged["w"].tolist() == [1.5]
    assert averaged["counts"].dtype == torch.int64 and averaged["counts"].tolist() == [3, 4]
    assert parts[0]["w"].tolist() == [1.0]  # the inputs are unchanged


@pytest.mark.parametrize(
    "other", [{"w": torch.ones(3)}, {"v": torch.ones(2)}, {"w": torch.ones(2), "v": torch.ones(2)}]
)
def test_different_names_or_shapes_are_rejected(other: dict[str, torch.Tensor]) -> None:
    with pytest.raises(CheckpointError, match="same names and shapes"):
        mean([{"w": torch.ones(2)}, other])


def test_description_shortens_long_lists_of_steps() -> None:
    run: Any = SimpleNamespace(path=Path("runs/one"))

    def words(steps: Iterable[int]) -> str:
        return AveragedWeights([run], {}, list(steps)).description

    assert words([5]) == "1 checkpoint of runs/one, step 5"
    assert words([900, 1000]) == "2 checkpoints of runs/one, steps 900, 1,000"
    assert words(range(100, 2100, 100)) == "20 checkpoints of runs/one, steps 100, 200, 300, …, 2,000"


# --- the run ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(recipe: Any, tmp_path: Path) -> Run:
    training = begin(recipe("train.keep_checkpoints=3"), tmp_path / "runs" / "one")
    list(training.events())
    return training.run


def test_average_uses_checkpoints_on_disk(trained: Run) -> None:
    averaged_run = average_runs([trained.path], 3, None)
    folders = [trained.path / "checkpoints" / f"step-{step}" for step in (4, 8, 12)]
    parts = [tensors_from_file(folder / "model.safetensors") for folder in folders]
    names = [dict(json.loads((f / "state.json").read_text())["model"]["dict"]) for f in folders]
    averaged = tensors_from_file(averaged_run.run.path / "model.safetensors")
    assert averaged_run.average.steps == [4, 8, 12]
    for name, tensor in averaged.items():
        stacked = torch.stack([p[n[name]["tensor"]].double() for p, n in zip(parts, names, strict=True)])
        assert torch.equal(tensor, stacked.mean(0).float()), name
    assert any(not torch.equal(tensor, parts[-1][names[-1][name]["tensor"]]) for name, tensor in averaged.items())


def test_averaged_run_keeps_recipe_data_and_tokenizer(trained: Run) -> None:
    averaged_run = average_runs([trained.path], 2, None).run
    assert averaged_run.path == trained.path.with_name("one-averaged")
    opened = Run.open(averaged_run.path)
    assert opened.recipe == trained.recipe
    for name in ("tokenizer.json", "data.json"):
        assert json.loads((opened.path / name).read_text()) == json.loads((trained.path / name).read_text())
    assert opened.average is not None and trained.average is None
    assert (opened.average["runs"], opened.average["steps"]) == ([str(trained.path)], [8, 12])
    averaged, evaluated, finished = opened.log()
    assert (averaged["event"], averaged["steps"], averaged["runs"]) == ("averaged", [8, 12], [str(trained.path)])
    assert evaluated["metrics"]["loss"] == finished["best"]["loss"] == (opened.metrics("dev") or {})["loss"]
    assert finished["parameters"] == next(entry for entry in trained.log())["parameters"]
    card = (opened.path / "card.md").read_text()
    assert f"2 checkpoints of `{trained.path.name}`, steps 8 to 12" in card
    assert "| metric | best checkpoint, step " in card and "## Data" in card


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_averaged_run_is_written_completely_or_not_at_all(
    trained: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    write, failing = files.write_flushed, 1
    while True:
        calls: list[Path] = []

        def fail(path: Path, content: bytes, calls: list[Path] = calls, failing: int = failing) -> None:
            calls.append(path)
            write(path, content[: len(content) // 2] if len(calls) == failing else content)
            if len(calls) == failing:
                raise error

        with monkeypatch.context() as patch:
            patch.setattr(layout, "write_flushed", fail)
            if failing > 8:
                average_runs([trained.path], 2, None)
                break
            with pytest.raises(ResourceError if isinstance(error, OSError) else KeyboardInterrupt):
                average_runs([trained.path], 2, None)
        assert [path.name for path in trained.path.parent.iterdir()] == ["one"]
        failing += 1
    # Recipe, manifest, data, tokenizer, average, metrics, weights, log: each file was truncated once
    assert len(calls) == 8
    assert (trained.path.parent / "one-averaged" / "metrics" / "dev.json").is_file()


def test_unwritable_output_is_rejected_before_evaluation(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("must not be called")

    monkeypatch.setattr(averages, "mean_of_checkpoints", never)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="Could not write"):
        average_runs([trained.path], 2, tmp_path / "file" / "x")
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="there exists and is not a run"):
        average_runs([trained.path], 2, tmp_path / "there")


def test_run_in_training_is_rejected(trained: Run) -> None:
    with trained.locked(), pytest.raises(UsageError, match="is being trained by another process"):
        average_runs([trained.path], 2, None)
    assert not trained.path.with_name("one-averaged").exists()


def test_read_only_run_can_be_averaged(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(Run, "locked", None)
    assert average_runs([trained.path], 2, tmp_path / "elsewhere").run.path.is_dir()


def test_damaged_average_json_is_reported(trained: Run) -> None:
    averaged_run = average_runs([trained.path], 2, None).run
    for text in ("{", "[]", "{}"):
        (averaged_run.path / "average.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"average\.json is damaged"):
            _ = Run.open(averaged_run.path).average
