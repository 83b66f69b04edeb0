"""Classification of images: augmentation, batches, folders of the user, commands, and the studio."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from starlette.testclient import TestClient

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.core.errors import DataError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.data import corpora
from seqloom.data.images import ImageShape, decode, encode_png
from seqloom.recipes import read_recipe
from seqloom.studio.run_folder import RunFolder
from seqloom.studio.server import make_app
from seqloom.tasks.classify_images import Task
from seqloom.tasks.image_base import AugmentConfig
from seqloom.train.events import Saved

SMALL = ["data.train=96", "data.dev=32", "data.test=32", "data.side=24", "model.image.channels=[8,16]"]
STEPS = ["train.epochs=null", "train.steps=30", "train.evaluate_every=30", "train.warmup=2"]
RNG = np.random.default_rng(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "run"
    train_recipe("classify-shapes", *SMALL, *STEPS, "data.label=colour", out=path)
    return path


@pytest.fixture(scope="module")
def picture(run: Path) -> Path:
    """The first image of test."""
    example = load(run, "cpu").task().corpus.split("test")[0]
    (run.parent / "picture.png").write_bytes(encode_png(example.image.pixels))
    return run.parent / "picture.png"


# --- augmentation and batches -----------------------------------------------------------------------------------------


def test_augmentation_depends_only_on_seed_and_step() -> None:
    images = RNG.integers(256, size=(6, 8, 7, 3), dtype=np.uint8)
    augment = AugmentConfig(shift=2, mirror=True)
    assert np.array_equal(augment.apply(images, 1, 5), augment.apply(images, 1, 5))
    assert not np.array_equal(augment.apply(images, 1, 5), augment.apply(images, 1, 6))
    assert not np.array_equal(augment.apply(images, 1, 5), augment.apply(images, 2, 5))
    assert np.array_equal(AugmentConfig().apply(images, 1, 5), images)


def test_augmented_images_are_shifted_and_mirrored() -> None:
    images = RNG.integers(256, size=(300, 8, 7, 1), dtype=np.uint8)
    found = set()
    for before, after in zip(images, AugmentConfig(shift=1, mirror=True).apply(images, 1, 0), strict=True):
        padded = np.pad(before, ((1, 1), (1, 1), (0, 0)), mode="edge")
        moves = {
            (down, right, mirrored)
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            for mirrored in (False, True)
            if np.array_equal(padded[1 - down : 9 - down, 1 - right : 8 - right][:, :: -1 if mirrored else 1], after)
        }
        assert len(moves) == 1
        found |= moves
    assert len(found) == 18


def test_epoch_reads_every_image_at_most_once(run: Path) -> None:
    task: Task = load(run).task()
    assert task.steps_per_epoch() == 3
    read = [image.tobytes() for step in range(3) for image in task.batch(3, step)["images"].numpy()]
    assert len(read) == 96
    again = task.batch(3, 1)
    assert torch.equal(again["images"], task.batch(3, 1)["images"])
    labels = [task.batch(3, step)["labels"] for step in range(3)]
    assert sorted(torch.cat(labels).tolist()) == sorted(task.train_labels.tolist())
    ranks = [task.batch(3, 0, rank, 2)["labels"] for rank in (0, 1)]
    assert torch.equal(torch.cat(ranks), torch.cat(labels[:2]))


def test_resumed_training_gives_the_same_weights(tmp_path: Path) -> None:
    """The model has batch norm, whose running averages are part of the state."""
    recipe = ["classify-shapes", *SMALL, "train.epochs=null", "train.steps=8", "train.evaluate_every=4"]

    def stop(event: Any) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    train_recipe(*recipe, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train_recipe(*recipe, out=tmp_path / "b", on_event=stop)
    steps = list[int]()
    train_recipe(*recipe, out=tmp_path / "b", resume=True, on_event=lambda event: steps.append(event.step))
    assert steps[0] == 4
    a, b = (tensors_from_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert any("running_variance" in name for name in a)
    assert all(torch.equal(a[name], b[name]) for name in a)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_image_files_are_classified(run: Path, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(run, "cpu")
    (answer,) = model.classify(picture)
    expected = model.predict_split("test")[0]
    assert answer.label == expected.label and answer.probability == pytest.approx(expected.probability)
    assert sum(each.probability for each in answer.candidates) == pytest.approx(1)
    same = model.classify([decode(picture.read_bytes(), "x").pixels, str(picture)])
    assert [each.label for each in same] == [answer.label] * 2
    assert [each.probability for each in same] == pytest.approx([answer.probability] * 2)
    assert main(["classify", str(run), str(picture), str(picture), "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].split("\t")[0] == expected.label and len(lines[0].split("\t")) == 4
    assert main(["predict", str(run), str(picture)]) == 0
    output = capsys.readouterr()
    assert output.out.startswith(f"{expected.label}\t") and output.err == ""
    table = picture.with_name("in.csv")
    table.write_text(f"image,note\n{picture},mine\n,blank\n")
    assert main(["classify", str(run), "--in", str(table), "--column", "image"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "image,note,label,probability" and rows[1].startswith(f"{picture},mine,{expected.label},0.")
    assert rows[2] == ",blank,,"
    with pytest.raises(UsageError, match=r"array of bytes .*got float64 \(3, 3\)"):
        model.classify(np.zeros((3, 3)))


def test_why_option_lists_and_draws_the_important_parts(
    run: Path, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "why.png"
    assert main(["classify", str(run), str(picture), "--why", "--json", "--out", str(out)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["image"] == str(picture) and set(answer["why"]["maps"]) == {"occlusion", "gradient"}
    assert np.shape(answer["why"]["maps"]["gradient"]) == (24, 24)
    assert decode(out.read_bytes(), "x").pixels.shape[1] > 600
    assert main(["classify", str(run), str(picture), "--why"]) == 0
    assert "\trows " in capsys.readouterr().out
    for words in (["--why", str(picture)], []):
        assert main(["classify", str(run), str(picture), *words, "--out", str(out)]) == 2
    assert "--out requires --why and a single image" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"has no label 'rde'.*red"):
        load(run).why(picture, "rde")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no image at all", "must be an image"),
        (b"", "it is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "must be an image|damaged or truncated"),
    ],
)
def test_unusable_images_are_reported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    (tmp_path / "x.png").write_bytes(content)
    assert main(["classify", str(run), str(tmp_path / "x.png")]) == 3
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and any(part in error for part in message.split("|"))


def test_evaluate_data_show_and_doctor_accept_images(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--split", "test"]) == 0
    output = capsys.readouterr().out
    assert "32 images" in output and "confusion matrix" in output and "most confident mistakes" in output
    assert main(["data", "show", "shapes", "train=20", "dev=5", "test=5", "--lines", "2"]) == 0
    assert "20" in (output := capsys.readouterr().out) and "train begins:" in output
    grid = run.parent / "grid.png"
    assert main(["data", "show", "shapes", "train=12", "dev=5", "test=5", "--out", str(grid)]) == 0
    assert decode(grid.read_bytes(), "x").pixels.shape[1] > 1000
    assert main(["data", "show", "toys", "--out", str(grid)]) == 2
    assert "--out requires a corpus of images, clips, sounds or pen strokes; toys has none" in capsys.readouterr().err
    assert main(["doctor", "classify-shapes", *SMALL]) == 0
    assert "96 images" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["embed", "x"], ["generate"], ["inspect", "attention", "x"], ["tag", "x"]])
def test_commands_for_texts_reject_images(run: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    command, *rest = words
    before = [command, *rest[:-1]] if command == "inspect" else [command]
    assert main([*before, str(run), *rest[-1:]]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_studio_lists_the_run_and_rejects_other_views(run: Path) -> None:
    client = TestClient(make_app(RunFolder(run.parent), "token"), base_url="http://127.0.0.1")
    client.headers["authorization"] = "Bearer token"
    (listed,) = client.post("/api/runs").json()["runs"]
    assert listed["problem"] is None and listed["ready"] and listed["views"] == ["images"]
    assert "dev accuracy" in client.post("/api/runs/curves", json={"runs": ["run"]}).json()["curves"]["run"]
    assert client.post("/api/runs/card", json={"run": "run"}).status_code == 200
    for path in ("understand/classify", "cell", "heads"):
        response = client.post(f"/api/{path}", json={"run": "run", "text": "x", "line": "x", "texts": ["x"]})
        assert 400 <= response.status_code < 500


# --- images of the user -----------------------------------------------------------------------------------------------


def folder(path: Path, labels: str = "ab", count: int = 12) -> Path:
    for label in labels:
        (path / label).mkdir(parents=True)
        for number in range(count):
            low = 0 if label == "a" else 128
            pixels = RNG.integers(low, low + 128, size=(10 + number, 12, 3), dtype=np.uint8)
            Pillow.fromarray(pixels).save(path / label / f"{number}.png")
    return path


def read(path: Path, **settings: Any) -> Any:
    return corpora.load(corpora.find("image-files").Config(train=str(path), **settings))


def test_folders_are_labels(tmp_path: Path) -> None:
    path = folder(tmp_path / "mine")
    (path / "a" / "deeper").mkdir()
    Pillow.new("L", (5, 5)).save(path / "a" / "deeper" / "x.GIF")
    (path / "a" / ".hidden.png").write_bytes(b"x")
    (path / "a" / "notes.txt").write_text("x")
    (path / "c").mkdir()
    corpus = read(path)
    assert corpus.labels == ("a", "b") and sum(corpus.sizes(split)["images"] for split in corpus.splits) == 25
    assert all(set(corpus.label_counts(split)) == {"a", "b"} for split in corpus.splits)
    assert "the folder 'c' of" in corpus.notes[0] and "notes.txt" in corpus.notes[1]
    assert corpus.fingerprint() == read(path).fingerprint()


def test_equal_files_are_in_the_same_split(tmp_path: Path) -> None:
    path = folder(tmp_path / "mine", count=20)
    for number in range(20):
        (path / "a" / f"copy{number}.png").write_bytes((path / "a" / f"{number}.png").read_bytes())
    corpus = read(path, dev_fraction=0.3, test_fraction=0.3)
    hashes = [{example.image.sha256 for example in corpus.split(split)} for split in corpus.splits]
    assert not hashes[0] & hashes[1] and not hashes[0] & hashes[2] and not hashes[1] & hashes[2]


def test_table_names_images_below_its_folder(tmp_path: Path) -> None:
    path = folder(tmp_path / "mine")
    rows = [f"{label}/{number}.png,{label.upper()}" for label in "ab" for number in range(12)]
    table = tmp_path / "mine" / "labels.csv"
    table.write_text("\n".join(["image,label", *rows]) + "\n")
    assert read(table).labels == ("A", "B")
    assert read(path).labels == ("a", "b")
    (tmp_path / "outside.png").write_bytes((path / "a" / "0.png").read_bytes())
    (path / "link.png").symlink_to(tmp_path / "outside.png")
    for name, message in (
        ("../outside.png", "must name a file below"),
        (str(tmp_path / "outside.png"), "must name a file below"),
        ("link.png", "is a link that leads out of"),
    ):
        table.write_text("\n".join(["image,label", *rows, f"{name},A"]) + "\n")
        with pytest.raises(DataError, match=message):
            read(table)
    table.write_text("\n".join(["image,label", "no.png,A", *rows, "a/99.png,A"]) + "\n")
    with pytest.raises(DataError, match=r"names 2 images that do not exist.*\n  no.png .line 2.\n  a/99.png .line 27."):
        read(table)


def test_links_out_of_a_folder_are_rejected(tmp_path: Path) -> None:
    path, other = folder(tmp_path / "mine"), folder(tmp_path / "other", "c")
    (path / "a" / "inside.png").symlink_to(path / "b" / "0.png")
    assert sum(len(read(path).split(split)) for split in ("train", "dev", "test")) == 25
    (path / "a" / "link.png").symlink_to(other / "c" / "0.png")
    with pytest.raises(DataError, match=r"link\.png is a link that leads out of"):
        read(path)
    (path / "a" / "link.png").unlink()
    (path / "c").symlink_to(other / "c")
    with pytest.raises(DataError, match="c is a link that leads out of"):
        read(path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [("a", "at least two folders with images.*one folder, 'a'"), ("", "it has no folder")],
)
def test_folder_without_two_labels_is_rejected(tmp_path: Path, labels: str, message: str) -> None:
    path = folder(tmp_path / "mine", labels) if labels else tmp_path
    Pillow.new("L", (5, 5)).save(path / "x.png")
    with pytest.raises(DataError, match=message):
        read(path)


def test_classifier_generates_no_images(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--grid", "x.png"]) == 2
    expected = "is a classifier of images: --grid, --steps-grid and --animation need a model that generates images."
    assert expected in capsys.readouterr().err


def test_unreadable_images_are_listed_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "mine")
    for number in (1, 4):
        (path / "a" / f"{number}.png").write_bytes(b"no image")
    words = ["train", "classify-shapes", "data.corpus=image-files", f"data.train={path}", "images.size=16"]
    assert main([*words, "data.dev_fraction=0.1", "--out", str(tmp_path / "run")]) == 3
    error = capsys.readouterr().err
    assert re.search("(train|dev|test): [12] of [0-9]+ images cannot be read:", error)
    assert "1.png must be an image" in error and "4.png" in error
    assert not (tmp_path / "run").exists()


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    overrides = ["data.corpus=image-files", f"data.train={folder(tmp_path / 'mine')}"]
    _, recipe = read_recipe("classify-shapes", overrides)
    with pytest.raises(DataError, match=r"must have the same size, but .*Set images.size, for example images.size=64"):
        Task.prepare(recipe)
    _, recipe = read_recipe("classify-shapes", [*overrides, "images.size=[8,6]", "images.channels=1"])
    assert Task.prepare(recipe).shape == ImageShape(8, 6, 1, "stretch")


def test_init_trains_and_evaluates_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path / "mine", count=20)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine", "--no-estimate"]) == 0
    assert "images, with a subfolder for each label" in capsys.readouterr().out
    steps = ["train.epochs=null", "train.steps=20", "train.evaluate_every=20", "train.warmup=2", "train.patience=null"]
    assert main(["train", "mine.yaml", *steps, "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.9
    for split in ("train", "dev"):
        folder(tmp_path / "parts" / split)
    assert main(["init", "parts", "--no-estimate", "--model", "vit"]) == 0
    written = (tmp_path / "parts.yaml").read_text()
    assert f"dev: {tmp_path / 'parts' / 'dev'}" in written or "dev: parts/dev" in written
    assert "kind: patches" in written
    (tmp_path / "t.csv").write_text("file,kind\n" + "".join(f"mine/a/{n}.png,x\nmine/b/{n}.png,y\n" for n in range(20)))
    assert main(["init", "t.csv", "--no-estimate"]) == 0
    assert 'images in the column "file", labels in the column "kind"' in capsys.readouterr().out


def test_error_of_init_explains_a_folder_with_one_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(tmp_path / "mine", "a")
    assert main(["init", str(tmp_path / "mine"), "--out", str(tmp_path / "x.yaml")]) == 3
    assert "at least two folders with images" in capsys.readouterr().err


# --- MNIST ------------------------------------------------------------------------------------------------------------


def write_mnist(path: Path, count: int = 60) -> Path:
    (path / "mnist").mkdir()
    for part in ("train", "t10k"):
        pixels, labels = np.zeros((count, 28, 28), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10
        for number, label in enumerate(labels):
            pixels[number, 2 * label : 2 * label + 4, 4 : 24 - number % 3] = 200 + number % 50
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
            (path / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes()))
    return path


def test_mnist_is_read_and_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLOOM_DATA", str(write_mnist(tmp_path)))
    corpus = corpora.load(corpora.find("mnist").Config(dev=20, train=30))
    assert [len(corpus.split(split)) for split in ("train", "dev", "test")] == [30, 20, 60]
    assert corpus.labels == tuple("0123456789") and corpus.split("dev")[0].text == "train 40"
    assert corpus.split("train")[13].image.decode().pixels[6:10, 4:23].min() == 213
    with pytest.raises(DataError, match=r"60 images; data.dev=60 leaves none"):
        corpora.load(corpora.find("mnist").Config(dev=60))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="MNIST needs"):
        corpora.load(corpora.find("mnist").Config(dev=20))


@pytest.mark.parametrize("name", ["vit", "cnn", "rows", "pixels"])
def test_recipes_of_mnist_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("SEQLOOM_DATA", str(write_mnist(tmp_path)))
    small = {
        "vit": ["model.encoder.layers=1", "model.image.patch=7"],
        "cnn": ["model.image.channels=[4,8]", "model.image.blocks=1"],
        "rows": ["model.encoder.layers=1", "model.encoder.hidden=16"],
        "pixels": ["model.encoder.hidden=4"],
    }[name]
    steps = ["train.epochs=null", "train.steps=3", "train.evaluate_every=3", "batch.size=8", "data.dev=20"]
    model = train_recipe(f"{name}-mnist", *small, *steps, out=tmp_path / "run")
    assert {"accuracy", "loss"} <= model.evaluate("test").keys()
    reasons = model.why(np.zeros((28, 28), dtype=np.uint8))
    assert set(reasons.maps) == {"occlusion", "gradient", *(["rollout"] if name == "vit" else [])}


def test_encoder_with_too_few_positions_is_rejected() -> None:
    positions = ["model.encoder.kind=transformer", "model.encoder.positions.kind=learned"]
    overrides = [*SMALL[:4], "model.image.kind=patches", *positions, "model.encoder.positions.max_length=20"]
    _, recipe = read_recipe("classify-shapes", overrides)
    with pytest.raises(UsageError, match="An image has 36 vectors, but the encoder has 20 positions"):
        Task.prepare(recipe)
