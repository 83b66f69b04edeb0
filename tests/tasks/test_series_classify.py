"""Classification of series: model, task, files of the user, and commands."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom.cli.app import main
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.series import variables_of
from seqloom.models.classifier import SeriesClassifierConfig
from seqloom.nn.encoders import ConvolutionEncoderConfig, RecurrentEncoderConfig, TransformerEncoderConfig
from seqloom.predict.classify import SeriesClassifierPredictor
from seqloom.predict.loader import load
from seqloom.recipes import read_recipe
from seqloom.tasks.series_classify import Task

ENCODERS: dict[str, Any] = {
    "recurrent": RecurrentEncoderConfig(hidden=6),
    "convolution": ConvolutionEncoderConfig(widths=(2, 3), filters=4),
    "transformer": TransformerEncoderConfig(d_model=8, heads=2, layers=1, dropout=0.0),
}
SMALL = ["model.encoder.kind=convolution", "model.encoder.filters=8", "train.epochs=12", "train.lr=1e-2"]


def rows(path: Path, count: int = 60, header: bool = False) -> Path:
    """Write slow and fast waves of 12 to 16 steps."""
    lines = ["kind," + ",".join(f"t{n}" for n in range(16))] if header else []
    for n in range(count):
        speed, length = (0.3, "slow") if n % 2 else (1.2, "fast"), 12 + n % 5
        values = [f"{10 + math.sin(speed[0] * t + n):.3f}" for t in range(length)]
        lines.append(",".join([speed[1], *values, *[""] * (16 - length)]))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("waves")
    file = rows(folder / "waves.csv")
    assert main(["train", "series-rows", f"data.train={file}", *SMALL, "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize("kind", ENCODERS)
def test_padding_and_missing_values_are_ignored(kind: str) -> None:
    torch.manual_seed(0)
    model = SeriesClassifierConfig(encoder=ENCODERS[kind]).build(2, 3).eval()
    model.set_scale([torch.randn(30, 2) * 4 + 7])
    values = torch.randn(2, 5, 2) + 7
    observed, mask = torch.ones(2, 5, 2, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    observed[0, 1, 0] = False
    batch = {"values": values, "observed": observed, "mask": mask}
    longer = {name: torch.cat([value, torch.zeros_like(value[:, :2])], dim=1) for name, value in batch.items()}
    other = values.clone()
    other[~observed] = 1e5
    with torch.no_grad():
        logits = model(batch)
        assert torch.allclose(logits, model(longer), atol=1e-5), "padding changes nothing"
        assert torch.equal(logits, model({**batch, "values": other})), "missing values are ignored"
        assert not torch.allclose(logits, model({**batch, "observed": torch.ones_like(observed)}))


def test_scale_is_computed_on_train() -> None:
    model = SeriesClassifierConfig().build(2, 2)
    series = torch.tensor([[1.0, 5.0], [3.0, 5.0], [math.nan, 5.0]])
    model.set_scale([series])
    assert model.centre.tolist() == [2, 5] and model.scale.tolist() == [1, 1]


def test_epoch_reads_every_series_once(run: Path) -> None:
    task: Task = load(run).task()
    train = task.corpus.split("train")
    read = [
        tuple(row[row != 0].tolist()) for step in range(task.steps_per_epoch()) for row in task.batch(3, step)["values"]
    ]
    assert len(set(read)) == len(train)
    assert torch.equal(task.batch(3, 1)["values"], task.batch(3, 1)["values"])
    halves = torch.cat([task.batch(3, 1, rank, 2)["values"] for rank in (0, 1)])
    assert torch.equal(halves, task.batch(3, 1)["values"])


def test_waves_are_classified(run: Path, tmp_path: Path) -> None:
    model = load(run, "cpu", SeriesClassifierPredictor)
    assert model.labels == ["fast", "slow"] and model.evaluate("test")["accuracy"] == 1.0
    fast = model.classify([10 + math.sin(1.2 * t) for t in range(14)])
    assert fast[0].label == "fast" and sum(prediction.probability for prediction in fast) == pytest.approx(1)
    with pytest.raises(UsageError, match="got 0 numbers"):
        model.classify([])
    with pytest.raises(UsageError, match=r"finite values and the shape \(T, 1\)"):
        model.classify(np.zeros((3, 2)))


def test_evaluate_classify_and_data_show_accept_series(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run), "--split", "test", "--confusion", str(tmp_path / "c.svg")]) == 0
    output = capsys.readouterr().out
    assert "accuracy" in output and "series" in output and "confusion matrix" in output
    line = ",".join(f"{10 + math.sin(0.3 * t):.2f}" for t in range(14))
    assert main(["classify", str(run), line, "--top", "2"]) == 0
    assert capsys.readouterr().out.split("\t")[0] == "slow"
    assert main(["classify", str(run), "1,2,three"]) == 3
    assert "Line 1 must have finite numbers" in capsys.readouterr().err
    assert main(["data", "show", "series-rows", f"train={run.parent / 'waves.csv'}", "--lines", "1"]) == 0
    assert "slow 50.0%" in capsys.readouterr().out


def read_rows(path: Path, **settings: Any) -> Any:
    return corpora.load(corpora.find("series-rows").Config(train=str(path), **settings))


def test_custom_rows_are_read(tmp_path: Path) -> None:
    plain, named = read_rows(rows(tmp_path / "a.csv")), read_rows(rows(tmp_path / "b.csv", header=True), label="kind")
    assert plain.fingerprint() == named.fingerprint() and plain.labels == ("fast", "slow")
    assert {len(example.values) for example in plain.split("train")} == {12, 13, 14, 15, 16}
    assert all(set(plain.label_counts(split)) == {"fast", "slow"} for split in ("train", "dev", "test"))
    two_variables = read_rows(rows(tmp_path / "c.csv"), variables=2)
    assert variables_of(two_variables) == 2 and len(two_variables.split("train")[0].values) == 8


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        (lambda text: text.replace("slow,1", "slow,x", 1), {}, r"Line 2 of .* must contain finite numbers .* got 'x"),
        (lambda text: text.replace("slow,10.", "slow,1e999", 1), {}, r"Line 2 of .* finite numbers .* got '1e999"),
        (lambda text: text.replace("slow", " ", 1), {}, r"Line 2 of .* must have a label in column 1"),
        (lambda text: "kind," + ",".join("abcdefghijklmnop") + "\n" + text, {}, r"Line 1 of .* data.header=true"),
        (lambda text: text, {"label": "kind"}, r"must have the column 'kind'"),
        (lambda text: text, {"variables": 3}, r"Line 1 of .* has 16 numbers, not a multiple of"),
        (lambda text: text.replace("slow", "fast"), {}, r"at least two labels"),
        (lambda text: text, {"label": 40}, r"must have the column 40"),
        (lambda text: "slow" + "," * 16 + "\n" + text, {}, r"Line 1 of .* must contain at least one number"),
    ],
)
def test_invalid_rows_are_rejected(
    tmp_path: Path, change: Callable[[str], str], settings: dict[str, Any], words: str
) -> None:
    file = rows(tmp_path / "bad.csv")
    file.write_text(change(file.read_text()))
    with pytest.raises(DataError, match=words):
        read_rows(file, **settings)


def test_digits_have_expected_splits_and_shapes() -> None:
    pytest.importorskip("sklearn")
    corpus = corpora.load(corpora.find("digits").Config())
    assert {split: len(corpus.split(split)) for split in corpus.splits} == {"train": 1165, "dev": 287, "test": 345}
    assert corpus.labels == tuple("0123456789") and corpus.split("train")[0].values.shape == (8, 8)
    pixels = corpora.load(corpora.find("digits").Config(by="pixels"))
    assert pixels.split("train")[0].values.shape == (64, 1)
    assert np.array_equal(pixels.split("dev")[3].values.ravel(), corpus.split("dev")[3].values.ravel())


def test_series_longer_than_encoder_positions_is_rejected(tmp_path: Path) -> None:
    file = rows(tmp_path / "a.csv")
    overrides = [f"data.train={file}", "model.encoder.kind=transformer", "model.encoder.positions.kind=learned"]
    _, recipe = read_recipe("series-rows", [*overrides, "model.encoder.positions.max_length=10"])
    with pytest.raises(UsageError, match="longest series has 16 steps, but the encoder has 10 positions"):
        Task.prepare(recipe)
