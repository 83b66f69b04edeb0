"""Captioned images of the user: tables, folders, splits, missing images, and recipes written by init."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from tests.predict.test_image_to_text import write_image

from seqloom.cli.app import main
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.detect import detect
from seqloom.data.shapes import caption_scene, draw_scenes, render
from seqloom.recipes import read_recipe

RNG = np.random.default_rng(5)


def write_pictures(folder: Path, count: int = 12) -> dict[str, tuple[str, ...]]:
    """Write images of shapes with different sizes. Return the captions of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    captions = {}
    for number, scene in zip(range(count), draw_scenes("train", 0, objects=(1, 2)), strict=False):
        Pillow.fromarray(render(scene, 24 + number % 3)).save(folder / f"{number}.png")
        captions[f"{number}.png"] = caption_scene(scene)
    return captions


def write_table(path: Path, captions: dict[str, tuple[str, ...]], prefix: str = "") -> Path:
    rows = [f"{prefix}{name}\t{caption}" for name, texts in captions.items() for caption in texts]
    path.write_text("\n".join(["image\tcaption", *rows]) + "\n")
    return path


def read(path: Path, **settings: Any) -> Any:
    return corpora.load(corpora.find("caption-files").Config(train=str(path), **settings))


def content(corpus: Any) -> dict[str, tuple[str, ...]]:
    """Return the captions of each image of all splits."""
    return {Path(e.image.name).name: e.captions for split in corpus.splits for e in corpus.split(split)}


def test_rows_with_the_same_image_are_its_captions(tmp_path: Path) -> None:
    captions = write_pictures(tmp_path / "pictures")
    inside = write_table(tmp_path / "pictures" / "captions.tsv", captions)
    beside = write_table(tmp_path / "captions.tsv", captions)
    above = write_table(tmp_path / "above.tsv", captions, "pictures/")
    folder = str(tmp_path / "pictures")
    assert any(len(texts) == 2 for texts in captions.values())
    for corpus in (read(inside), read(beside, folder=folder), read(above)):
        assert content(corpus) == captions
        assert corpus.fingerprint() == read(inside).fingerprint()
        assert [len(corpus.split(split)) for split in ("train", "dev", "test")] == [10, 1, 1]
    shuffled = list(captions.items())
    RNG.shuffle(shuffled)  # the choice of the splits does not depend on the order of the rows
    assert {e.image.name for e in read(write_table(inside, dict(shuffled))).split("test")} == {
        e.image.name for e in read(above).split("test")
    }


def test_captions_are_read_from_other_layouts(tmp_path: Path) -> None:
    captions = {name: (texts * 2)[:2] for name, texts in write_pictures(tmp_path).items()}
    records = [{"file": name, "texts": list(texts)} for name, texts in captions.items()]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    wide = ["image,caption_1,caption_2", *(f"{name},{first},{second}" for name, (first, second) in captions.items())]
    (tmp_path / "b.csv").write_text("\n".join(wide) + "\n")
    numbered = (f"{name}#{n}\t{text}" for name, texts in captions.items() for n, text in enumerate(texts))
    (tmp_path / "c.tsv").write_text("\n".join(numbered) + "\n")
    assert content(read(tmp_path / "a.jsonl", image="file", caption="texts")) == captions
    assert content(read(tmp_path / "b.csv", caption=("caption_1", "caption_2"))) == captions
    assert content(read(tmp_path / "c.tsv", image=1, caption=2)) == captions


def test_equal_images_are_in_the_same_split(tmp_path: Path) -> None:
    captions = write_pictures(tmp_path, 20)
    for number in range(20):
        shutil.copy(tmp_path / f"{number}.png", tmp_path / f"copy{number}.png")
        captions[f"copy{number}.png"] = ("a copy",)
    corpus = read(write_table(tmp_path / "x.tsv", captions), dev_fraction=0.3, test_fraction=0.3)
    hashes = [{example.image.sha256 for example in corpus.split(split)} for split in corpus.splits]
    assert not hashes[0] & hashes[1] and not hashes[0] & hashes[2] and not hashes[1] & hashes[2]


def test_all_missing_images_are_listed(tmp_path: Path) -> None:
    captions = write_pictures(tmp_path / "pictures")
    names = [f"no{number}.png" for number in range(15)]
    table = write_table(tmp_path / "x.tsv", {**captions, **dict.fromkeys(names, ("a", "b"))})
    with pytest.raises(DataError, match="names 15 images that do not exist below") as error:
        read(table, folder=str(tmp_path / "pictures"))
    listed = [line.split()[0] for line in str(error.value).splitlines()[1:]]
    assert listed == names
    with pytest.raises(DataError, match=r"must be a folder of images\. Check data\.folder"):
        read(table, folder=str(tmp_path / "none"))


def test_paths_outside_the_folder_are_rejected(tmp_path: Path) -> None:
    captions = write_pictures(tmp_path / "mine")
    (tmp_path / "outside.png").write_bytes((tmp_path / "mine" / "0.png").read_bytes())
    (tmp_path / "mine" / "link.png").symlink_to(tmp_path / "outside.png")
    for name, message in (
        ("../outside.png", "must name a file below"),
        (str(tmp_path / "outside.png"), "must name a file below"),
        ("link.png", "is a link that leads out of"),
    ):
        with pytest.raises(DataError, match=message):
            read(write_table(tmp_path / "mine" / "x.tsv", {**captions, name: ("a",)}))


def test_incomplete_rows_and_images_without_captions_are_noted(tmp_path: Path) -> None:
    captions = write_pictures(tmp_path / "mine")
    Pillow.new("L", (5, 5)).save(tmp_path / "mine" / "more.png")
    table = write_table(tmp_path / "x.tsv", {**captions, "0.png": (" ", "a shape"), "": ("a caption",)})
    corpus = read(table, folder=str(tmp_path / "mine"))
    assert content(corpus)["0.png"] == ("a shape",)
    assert [note.split(" of ")[0].split(" at ")[0] for note in corpus.notes] == [
        "1 example has no image and was left out,",
        "1 example has no caption and was left out,",
        "1 image",
    ]
    table.write_text("image\tcaption\n0.png\t \n")
    with pytest.raises(DataError, match="must contain rows with an image and a caption"):
        read(table, folder=str(tmp_path / "mine"))


# --- init -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [None, "caption"])
def test_files_are_recognized(tmp_path: Path, task: str | None) -> None:
    captions = write_pictures(tmp_path / "p")
    table, folder = write_table(tmp_path / "captions.tsv", captions), tmp_path / "p"
    columns = {"corpus": "caption-files", "train": str(table), "image": "image", "caption": "caption"}
    for files in ([folder, table], [table, folder]):
        assert detect(files, task).data == {**columns, "folder": str(folder)}
    metadata = write_table(folder / "metadata.tsv", captions)
    assert detect([folder], task).data == {**columns, "train": str(metadata)} == detect([metadata], task).data
    splits = [write_table(tmp_path / f"{name}.tsv", captions) for name in ("train", "test")]
    found = detect([folder, *splits], task).data
    assert found["train"] == str(splits[0]) and found["test"] == str(splits[1]) and found["folder"] == str(folder)
    (tmp_path / "c.tsv").write_text("".join(f"{name}#0\t{texts[0]}\n" for name, texts in captions.items()))
    assert detect([folder, tmp_path / "c.tsv"], task).data["caption"] == 2


def test_files_that_are_not_captions_are_rejected(tmp_path: Path) -> None:
    captions = write_pictures(tmp_path / "p")
    table = write_table(tmp_path / "captions.tsv", captions)
    table.write_text("image\tlabel\n" + "".join(f"{name}\t{'xy'[int(name[0]) % 2]}\n" for name in captions))
    with pytest.raises(UsageError, match="reads a folder of images or a table, but not both"):
        detect([tmp_path / "p", table], "classify-images")
    with pytest.raises(UsageError, match="was not recognized as data for the task caption"):
        detect([tmp_path / "p"], "caption")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(UsageError, match="was not recognized as data for the task caption"):
        detect([tmp_path / "p", tmp_path / "x.csv"], "caption")


def test_init_trains_captions_evaluates_and_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = write_pictures(tmp_path / "pictures", 30)
    write_table(tmp_path / "captions.tsv", captions)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "pictures", "captions.tsv", "--task", "caption", "--no-estimate"]) == 0
    output = capsys.readouterr().out
    assert 'images in the column "image", captions in the column "caption". 24 images' in output
    for model in ("lstm", "efficientnet"):
        words = ["--model", model, "--no-estimate", "--out", f"{model}.yaml"]
        assert main(["init", "pictures", "captions.tsv", *words]) == 0
    assert "kind: recurrent-seq2seq" in Path("lstm.yaml").read_text()
    assert "kind: efficientnet-lite0" in Path("efficientnet.yaml").read_text()
    steps = ["train.epochs=null", "train.steps=4", "train.evaluate_every=4", "train.warmup=2", "train.patience=null"]
    assert read_recipe(Path("lstm.yaml"))[1].model.seq2seq.attention.order == "bahdanau"
    assert main(["train", "pictures.yaml", *steps, "--out", "pictures-run"]) == 0
    first = next(iter(captions))
    assert main(["caption", "pictures-run", f"pictures/{first}", "--attention", "x.png"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "pictures-run", "--split", "test", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["loss"]
    Path("new").mkdir()
    for name in ("pictures", "captions.tsv"):
        Path(name).rename(Path("new") / name)
    assert main(["evaluate", "pictures-run", "--split", "test", "--json", "--data", "new"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(expected)
    other = write_table(Path("new/pictures/other.tsv"), dict(list(captions.items())[:5]))
    assert main(["evaluate", "pictures-run", str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 5


def test_training_converts_unusual_images_and_reports_unusable_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = write_pictures(tmp_path / "pictures", 20)
    for kind in ("animated", "cmyk", "16-bit", "transparent", "exif", "1x1"):
        write_image(tmp_path / "pictures" / f"{kind}.png", kind)
        captions[f"{kind}.png"] = ("an unusual image",)
    write_table(tmp_path / "captions.tsv", captions)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "pictures", "captions.tsv", "--no-estimate"]) == 0
    steps = ["train.epochs=null", "train.steps=2", "train.evaluate_every=2", "train.warmup=1", "train.patience=null"]
    assert main(["train", "pictures.yaml", *steps, "--out", "run"]) == 0
    output = capsys.readouterr()
    assert "animated: only the first frame is used" in output.out + output.err
    for kind in ("text", "truncated", "huge"):
        write_image(tmp_path / "pictures" / f"{kind}.png", kind)
        captions[f"{kind}.png"] = ("an unusable image",)
    write_table(tmp_path / "captions.tsv", captions)
    assert main(["train", "pictures.yaml", *steps, "--out", "run2"]) == 3
    error = capsys.readouterr().err
    assert all(f"{kind}.png" in error for kind in ("text", "truncated", "huge"))
    assert "images cannot be read" in error and not Path("run2").exists()
