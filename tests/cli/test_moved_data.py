"""Runs whose data was moved, extended, changed or deleted: unchanged splits are used, other splits raise an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.understanding import reviews, write_reviews

SMALL = ["train.steps=2", "train.epochs=null", "train.warmup=0", "train.evaluate_every=1", "train.schedule=constant"]


@pytest.fixture
def run(seqloom: Any, workdir: Path) -> Path:
    """A classifier whose dev and test splits are held out from the same file."""
    write_reviews(workdir / "r.csv", reviews()[:100])
    assert seqloom("init", "r.csv", "--no-estimate", "--model", "bag").code == 0
    assert seqloom("train", "r.yaml", *SMALL, "--out", "runs/r").code == 0
    return workdir / "runs/r"


@pytest.fixture
def files(seqloom: Any, workdir: Path) -> Path:
    """A classifier with a separate file for each split."""
    for number, split in enumerate(("train", "dev", "test")):
        write_reviews(workdir / f"{split}.csv", reviews()[40 * number : 40 * number + 40])
    assert seqloom("init", "train.csv", "dev.csv", "test.csv", "--no-estimate", "--model", "bag").code == 0
    assert seqloom("train", "train.yaml", *SMALL, "--out", "runs/f").code == 0
    return workdir / "runs/f"


def metrics(seqloom: Any, run: Path, *words: object) -> dict[str, Any]:
    result = seqloom("evaluate", run, *words, "--json")
    assert result.code == 0, result.err
    return dict(json.loads(result.out))


def test_moved_file_is_named_by_data(seqloom: Any, workdir: Path, run: Path) -> None:
    before = metrics(seqloom, run, "--split", "test")
    (workdir / "sub").mkdir()
    (workdir / "r.csv").rename(workdir / "sub/r.csv")
    seqloom("evaluate", run).fails_with(3, "r.csv does not exist. If the data has moved", "--data PATH", lines=1)
    assert metrics(seqloom, run, "--split", "test", "--data", "sub") == before
    (workdir / "sub/r.csv").rename(workdir / "other.csv")
    assert metrics(seqloom, run, "--split", "test", "--data", "other.csv") == before
    seqloom("evaluate", run, "--data", "nowhere").fails_with(3, "nowhere does not exist", lines=1)
    assert seqloom("classify", run, "a fine film").code == 0


def test_moved_run_is_resumed_with_equal_weights(seqloom: Any, workdir: Path, run: Path, weights: Any) -> None:
    """The path in the run's recipe does not change, because the identity of its checkpoints depends on it."""
    recipe = (run / "recipe.yaml").read_text()
    write_reviews(workdir / "copy.csv", reviews()[:100])
    (workdir / "r.csv").unlink()
    seqloom("train", "--resume", run, "train.steps=3").fails_with(3, "--data PATH", lines=1)
    assert seqloom("train", "--resume", run, "train.steps=3", "--data", "copy.csv").code == 0
    assert seqloom("train", "--resume", run, "train.steps=4", "data.train=copy.csv").code == 0
    assert (run / "recipe.yaml").read_text() == recipe.replace("steps: 2", "steps: 4")
    (workdir / "copy.csv").rename(workdir / "r.csv")
    whole = ["train.steps=4", *SMALL[1:]]
    assert seqloom("train", "r.yaml", *whole, "--out", "runs/whole").code == 0
    assert weights(run) == weights(workdir / "runs/whole")


def test_file_with_appended_rows_keeps_its_splits(seqloom: Any, workdir: Path, run: Path) -> None:
    before = [metrics(seqloom, run, "--split", split) for split in ("train", "dev", "test")]
    with open(workdir / "r.csv", "a") as file:
        file.writelines(f'"{text}",{label}\n' for text, label in reviews()[100:])
    result = seqloom("evaluate", run)
    assert "r.csv has grown since training; only the examples of the training data are used" in result.err
    assert [metrics(seqloom, run, "--split", split) for split in ("train", "dev", "test")] == before
    resumed = seqloom("train", "--resume", run, "train.steps=3")
    assert resumed.code == 0 and "has grown since training" in resumed.err


def test_changed_row_invalidates_only_its_split(seqloom: Any, workdir: Path, files: Path) -> None:
    before = metrics(seqloom, files, "--split", "test")
    rows = (workdir / "dev.csv").read_text().splitlines()
    (workdir / "dev.csv").write_text("\n".join([*rows[:-1], '"another text",good']) + "\n")
    message = "The data of {} has changed since it was trained: dev of table differ"
    seqloom("evaluate", files).fails_with(3, message.format(files), f"seqloom evaluate {files} FILE", lines=1)
    seqloom("train", "--resume", files, "train.steps=3").fails_with(3, "dev of table differ", lines=1)
    result = seqloom("evaluate", files, "--split", "test")
    assert "note: dev of table changed since training, but train and test did not" in result.err
    assert metrics(seqloom, files, "--split", "test") == before


def test_splits_with_own_files_need_no_training_data(seqloom: Any, workdir: Path, files: Path) -> None:
    before = [metrics(seqloom, files, "--split", split) for split in ("dev", "test")]
    (workdir / "train.csv").unlink()
    assert [metrics(seqloom, files, "--split", split) for split in ("dev", "test")] == before
    assert "only dev and test can be used" in seqloom("evaluate", files).err
    seqloom("evaluate", files, "--split", "train").fails_with(3, "train.csv does not exist", lines=1)
    (workdir / "dev.csv").unlink()
    assert metrics(seqloom, files, "--split", "test") == before[1]
    (workdir / "all").mkdir()
    for name, number in (("train", 0), ("dev", 1), ("test", 2)):
        write_reviews(workdir / f"all/{name}.csv", reviews()[40 * number : 40 * number + 40])
    assert [metrics(seqloom, files, "--split", split, "--data", "all") for split in ("dev", "test")] == before
    seqloom("evaluate", files, "--data", "test.csv").fails_with(3, "--data must name the data file, or the folder")


def test_text_and_series_with_appended_rows_keep_their_splits(seqloom: Any, workdir: Path) -> None:
    lines = [f"the owl number {n} slept here ." for n in range(120)]
    (workdir / "t.txt").write_text("\n".join(lines) + "\n")
    text = ["data.corpus=text", "data.train=t.txt", "data.dev_fraction=0.1", "data.test_fraction=0.1"]
    assert seqloom("train", "ngram-kn5", *text, "model.order=2", "--out", "runs/t").code == 0
    (workdir / "s.csv").write_text("day,value\n" + "".join(f"{n},{n % 5}.5\n" for n in range(80)))
    assert seqloom("init", "s.csv", "--no-estimate", "--model", "ar").code == 0
    assert seqloom("train", "s.yaml", "--out", "runs/s").code == 0
    for run, file, more in (("runs/t", "t.txt", "a new line\n"), ("runs/s", "s.csv", "80,1.5\n81,2.5\n82,9.5\n")):
        before = [metrics(seqloom, workdir / run, "--split", split) for split in ("dev", "test")]
        with open(workdir / file, "a") as stream:
            stream.write(more)
        assert [metrics(seqloom, workdir / run, "--split", split) for split in ("dev", "test")] == before
        assert "has grown since training" in seqloom("evaluate", run).err
    (workdir / "t.txt").write_text("\n".join(["another beginning", *lines[1:]]) + "\n")
    seqloom("evaluate", "runs/t", "--split", "train").fails_with(3, "train of text differ", lines=1)
    assert "train of text changed since training" in seqloom("evaluate", "runs/t", "--split", "test").err


def test_data_requires_a_run_to_resume(seqloom: Any, workdir: Path) -> None:
    seqloom("train", "names", "--data", "x.csv").fails_with(2, "--data names the data of a run to --resume", lines=1)
