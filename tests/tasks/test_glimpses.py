"""Glimpses in the task classify-images: training, resuming, explanations, and scattered digits."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.test_classify_images import write_mnist

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.core.errors import DataError
from seqloom.core.files import tensors_from_file
from seqloom.data import corpora
from seqloom.data.images import decode, encode_png
from seqloom.data.scattered_digits import PIECE, scatter
from seqloom.train.events import Progress, Saved

GLIMPSES = ["model.kind=glimpses", "model.glimpses=3", "model.patch=6", "model.scales=2", "model.hidden=16"]
SMALL = ["classify-shapes", "data.train=96", "data.dev=32", "data.test=32", "data.side=24", "data.label=colour"]
STEPS = ["train.epochs=null", "train.steps=8", "train.evaluate_every=4", "train.warmup=2", "batch.size=16"]


def stop(event: Any) -> None:
    if isinstance(event, Saved):
        raise KeyboardInterrupt


def test_resumed_training_gives_the_same_weights(tmp_path: Path) -> None:
    """The random locations of a step depend only on the seed and the step."""
    recipe = [*SMALL, *GLIMPSES, *STEPS, "model.samples=2", "loss.label_smoothing=0.1"]
    remarks = set[str]()

    def note(event: Any) -> None:
        if isinstance(event, Progress):
            remarks.add(event.remark)

    train_recipe(*recipe, out=tmp_path / "a", on_event=note)
    assert remarks == {"smoothed, with policy and baseline"}
    with pytest.raises(KeyboardInterrupt):
        train_recipe(*recipe, out=tmp_path / "b", on_event=stop)
    train_recipe(*recipe, out=tmp_path / "b", resume=True)
    train_recipe(*recipe, "seed=2", out=tmp_path / "c")
    a, b, c = (tensors_from_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_glimpses_are_listed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_recipe(*SMALL, *GLIMPSES, *STEPS, out=tmp_path / "run")
    example = load(tmp_path / "run", "cpu").task().corpus.split("test")[0]
    picture, out = tmp_path / "x.png", tmp_path / "why.png"
    picture.write_bytes(encode_png(example.image.pixels))
    assert main(["classify", str(tmp_path / "run"), str(picture), "--why", "--json", "--out", str(out)]) == 0
    answer = json.loads(capsys.readouterr().out)
    glimpses = answer["why"]["glimpses"]
    assert len(glimpses) == 3 and glimpses[0] | {"probability": 0} == {
        "row": 12.0,
        "column": 12.0,
        "sides": [6, 12],
        "probability": 0,
    }
    assert glimpses[2]["probability"] == pytest.approx(answer["probability"], abs=1e-6)
    assert decode(out.read_bytes(), "x").pixels.shape[1] > 1000
    assert main(["classify", str(tmp_path / "run"), str(picture), "--why"]) == 0
    assert "\tglimpse at row 12, column 12: 0." in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run"), "--split", "test"]) == 0
    assert "confusion matrix" in capsys.readouterr().out


# --- scattered digits -------------------------------------------------------------------------------------------------


def digits(count: int = 40, seed: int = 1) -> np.ndarray:
    """Images whose pixels are all above 0, so that they can be found on a canvas."""
    return np.random.default_rng(seed).integers(1, 256, size=(count, 10, 9), dtype=np.uint8)


def test_translated_digits_are_unchanged_at_every_position() -> None:
    parts, places = digits(400), set()
    for part, canvas in zip(parts, scatter(parts, 12, 0, np.random.default_rng(2)), strict=True):
        assert np.count_nonzero(canvas) == part.size
        row, column = (int(axis.min()) for axis in np.nonzero(canvas))
        assert np.array_equal(canvas[row : row + 10, column : column + 9], part)
        places.add((row, column))
    assert places == {(row, column) for row in range(3) for column in range(4)}


def test_clutter_consists_of_pieces_of_other_digits() -> None:
    """With one piece, all pixels outside the digit belong to a square of another digit."""
    parts, found = digits(), 0
    plain, cluttered = (scatter(parts, 40, pieces, np.random.default_rng(3)) for pieces in (0, 1))
    for number, (before, after) in enumerate(zip(plain, cluttered, strict=True)):
        assert (after >= before).all()
        piece = np.where(before == 0, after, 0)
        rows, columns = np.nonzero(piece)
        if np.count_nonzero(piece) < PIECE**2:  # overlaps the digit
            continue
        square = piece[rows.min() : rows.min() + PIECE, columns.min() : columns.min() + PIECE]
        windows = np.lib.stride_tricks.sliding_window_view(parts, (PIECE, PIECE), axis=(1, 2))
        sources = np.nonzero((windows == square).all(axis=(3, 4)))[0]
        assert len(sources) == 1 and sources[0] != number
        found += 1
    assert found > 20


def read(**settings: Any) -> Any:
    return corpora.load(corpora.find("mnist").Config(dev=20, **settings))


def test_variants_of_mnist_depend_only_on_their_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLOOM_DATA", str(write_mnist(tmp_path)))
    plain, translated = read(), read(variant="translated")
    again, other = read(variant="translated"), read(variant="translated", seed=2)
    assert translated.fingerprint() == again.fingerprint() != other.fingerprint()
    assert translated.version != other.version and "translated, seed 1" in translated.version
    for split in ("train", "dev", "test"):
        for before, after in zip(plain.split(split), translated.split(split), strict=True):
            assert (before.label, before.text) == (after.label, after.text)
            pixels = after.image.pixels
            assert pixels.shape == (60, 60, 1)
            assert sorted(pixels[pixels > 0]) == sorted(before.image.pixels[before.image.pixels > 0])
    cluttered = read(variant="cluttered", side=40)
    assert cluttered.split("test")[0].image.pixels.shape == (40, 40, 1)


def test_digits_that_do_not_fit_the_canvas_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLOOM_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for part, kind, values in (
        ("train", "images-idx3", np.zeros((30, 70, 28), dtype=np.uint8)),
        ("train", "labels-idx1", np.zeros(30, dtype=np.uint8)),
    ):
        header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
        (tmp_path / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes()))
    with pytest.raises(DataError, match=r"sides between 8 and data.side=60 pixels, but the digits have 70 × 28 pixels"):
        read(variant="translated")


def test_recipe_trains_on_cluttered_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLOOM_DATA", str(write_mnist(tmp_path)))
    small = ["data.dev=20", "data.variant=cluttered", "batch.size=8", "model.glimpses=2", "model.scales=3"]
    model = train_recipe("glimpses-mnist", *small, *STEPS[:4], out=tmp_path / "run")
    assert {"accuracy", "loss"} <= model.evaluate("test").keys()
    reasons = model.why(np.zeros((60, 60), dtype=np.uint8))
    assert reasons.glimpses[1].sides == (8, 16, 32)
