"""Classifiers of images from Python: kinds of images, storage and messages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.estimators.examples import CASES

import seqloom

pillow = pytest.importorskip("PIL.Image")
IMAGES, LABELS = CASES["ImageClassifier"].data.values()


@pytest.fixture(scope="module")
def model() -> Any:
    names = ["bright" if label else "dark" for label in LABELS]
    return seqloom.ImageClassifier(overrides=["train.epochs=8"]).fit(IMAGES, names, validation=0.2)


def test_image_classifier_learns_labels_of_any_type(model: Any) -> None:
    assert model.classes_.tolist() == ["bright", "dark"]
    assert model.predict(IMAGES[:2]) == ["dark", "bright"]
    p = model.predict_proba(IMAGES[:5])
    assert p.shape == (5, 2) and np.allclose(p.sum(1), 1)
    names = ["bright" if label else "dark" for label in LABELS]
    right = sum(a == b for a, b in zip(model.predict(IMAGES), names, strict=True)) / len(names)
    assert model.score(IMAGES, names) == right > 0.9
    assert model.evaluate(IMAGES, names)["accuracy"] == pytest.approx(right)


def test_every_kind_of_image_gives_equal_predictions(model: Any, tmp_path: Path) -> None:
    expected = model.predict_proba(IMAGES[:4])
    for index, pixels in enumerate(IMAGES[:4]):
        pillow.fromarray(pixels).save(tmp_path / f"{index}.png")
    paths = sorted(tmp_path.glob("*.png"))
    kinds = {
        "list of arrays": list(IMAGES[:4]),
        "one channel": IMAGES[:4, :, :, None],
        "paths": paths,
        "strings": list(map(str, paths)),
        "contents": [path.read_bytes() for path in paths],
        "Pillow": [pillow.open(path) for path in paths],
    }
    for kind, images in kinds.items():
        assert np.array_equal(model.predict_proba(images), expected), kind


def test_files_are_copied_into_the_data_of_the_run(tmp_path: Path) -> None:
    for index, (pixels, label) in enumerate(zip(IMAGES[:40], LABELS, strict=False)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        pillow.fromarray(pixels).save(tmp_path / str(label) / f"{index}.png")
    from_folder = seqloom.ImageClassifier(overrides=["train.epochs=1"]).fit_file(tmp_path)
    assert from_folder.classes_.tolist() == ["0", "1"]
    paths = sorted(tmp_path.glob("*/*.png"))
    labels = [int(path.parent.name) for path in paths]
    fitted = seqloom.ImageClassifier(out=tmp_path / "run", overrides=["train.epochs=1"]).fit(paths, labels)
    for path in paths:
        path.unlink()
    assert fitted.predictor.evaluate("dev")["accuracy"] >= 0
    assert seqloom.ImageClassifier.load(tmp_path / "run").classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES[0], r"images must have the shape \(N, H, W\) or \(N, H, W, C\); got \(12, 12\)"),
        ([IMAGES[0], IMAGES[1] / 255.0], r"images\[1\] must be an array of bytes \(uint8\).* got float64 \(12, 12\)"),
        ([IMAGES[0], "missing.png"], r"images\[1\] must be an image file, but 'missing.png' does not exist"),
        ([IMAGES[0], None], r"images\[1\] must be an image; got None"),
        ([IMAGES[0], [[1, 2]]], r"images\[1\] must be a file, bytes, an array or a Pillow image; got list"),
        ([IMAGES[0], b"GIF89"], r"images\[1\]"),
    ],
)
def test_other_values_are_explained(images: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        seqloom.ImageClassifier().fit(images, [0, 1])
