"""Captions in use: predictions, attention over the image, n-best lists, questions, tables and damaged images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.data.test_images import png_header

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.core.errors import UsageError
from seqloom.data.images import decode, encode_png
from seqloom.data.shapes import draw_scenes, scene_image
from seqloom.predict.image_to_text import Captioner, ImageQuery
from seqloom.tasks import caption

SMALL = ["data.train=60", "data.dev=12", "data.test=12", "data.side=24", "model.image.channels=[8,16]", "batch.size=16"]
STEPS = ["train.epochs=null", "train.steps=12", "train.evaluate_every=12", "train.warmup=2"]
MODELS = {
    "transformer": [],
    "luong": ["model.seq2seq={kind: recurrent-seq2seq, hidden: 16}"],
    "bahdanau": ["model.seq2seq={kind: recurrent-seq2seq, hidden: 16, attention: {order: bahdanau}}"],
    "none": ["model.seq2seq={kind: recurrent-seq2seq, hidden: 16, attention: null}"],
}
Runs = dict[str, Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("captions")
    for name, overrides in MODELS.items():
        train_recipe("caption-shapes", *SMALL, *STEPS, *overrides, out=folder / name)
    return {name: folder / name for name in MODELS}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, scenes = tmp_path_factory.mktemp("pictures"), draw_scenes("test", 0)
    paths = [folder / f"{number}.png" for number in range(4)]
    for path, scene in zip(paths, scenes, strict=False):
        path.write_bytes(encode_png(scene_image(scene, "x", 24).pixels))
    return paths


def read_forced(model: Captioner, path: Path, text: str) -> tuple[float, Any]:
    """Return log p of a caption, and the attention (T, N) of its tokens, computed with the caption as input."""
    ids = [*model.tokenizer.encode(text), model.tokenizer.end]
    pixels = np.array(Pillow.open(path))[None]
    batch = {
        "source": {"images": torch.from_numpy(pixels)},
        "source_mask": torch.ones(1, model.vectors_per_image, dtype=torch.bool),
        "inputs": torch.tensor([[model.tokenizer.end, *ids[:-1]]]),
        "targets": torch.tensor([ids]),
        "target_mask": torch.ones(1, len(ids), dtype=torch.bool),
    }
    with torch.no_grad():
        return model.model.target_log_probs(batch).double().sum().item(), model.model.attention(batch)


@pytest.mark.parametrize("name", MODELS)
def test_candidates_have_the_probabilities_of_their_texts(runs: Runs, pictures: list[Path], name: str) -> None:
    model = load(runs[name], "cpu")
    for path, prediction in zip(pictures, model.caption(pictures, n_best=3), strict=True):
        assert prediction.image == str(path) and len(prediction.candidates) == 3
        scores = [candidate.score for candidate in prediction.candidates if candidate.finished]
        assert scores == sorted(scores, reverse=True) and prediction.text == prediction.candidates[0].text
        for candidate in (each for each in prediction.candidates if each.finished):
            log_prob, _ = read_forced(model, path, candidate.text)
            assert candidate.log_prob == pytest.approx(log_prob, abs=1e-4)
            length = len(model.tokenizer.encode(candidate.text)) + 1
            assert candidate.score == pytest.approx(log_prob / length, abs=1e-4)


@pytest.mark.parametrize("name", ["transformer", "luong", "bahdanau"])
def test_attention_of_words_is_that_of_the_forced_caption(runs: Runs, pictures: list[Path], name: str) -> None:
    model = load(runs[name], "cpu")
    (prediction,) = model.caption(pictures[0], attention=True, max_length=6)
    _, weights = read_forced(model, pictures[0], prediction.text)
    assert [word.text for word in prediction.words] == prediction.text.split()
    for row, word in zip(weights[0], prediction.words, strict=False):
        assert word.weights.shape == (6, 6) and word.source_weights.shape == (0,)
        np.testing.assert_allclose(word.weights.ravel(), row, atol=1e-5)
        assert word.weights.sum() == pytest.approx(1, abs=1e-5)
    assert model.draw_attention(prediction) is not None
    forced = model.force(pictures[0], "a small red circle")
    assert forced.text == "a small red circle" and len(forced.words) == 4 and len(forced.candidates) == 1
    assert forced.log_prob == pytest.approx(read_forced(model, pictures[0], forced.text)[0], abs=1e-4)


def test_attention_needs_a_model_with_attention(runs: Runs, pictures: list[Path]) -> None:
    with pytest.raises(UsageError, match="has no attention weights: it was trained without attention"):
        load(runs["none"], "cpu").caption(pictures[0], attention=True)
    model = load(runs["luong"], "cpu")
    with pytest.raises(UsageError, match="compute it with attention=True"):
        model.draw_attention(model.caption(pictures[0])[0])


def test_files_and_arrays_have_the_same_captions(runs: Runs, pictures: list[Path]) -> None:
    model = load(runs["transformer"], "cpu")
    several = model.caption([str(pictures[0]), "", np.array(Pillow.open(pictures[1])), pictures[2]])
    alone = [model.caption(pictures[number])[0] for number in (0, 1, 2)]
    assert [each.text for each in several] == [alone[0].text, "", alone[1].text, alone[2].text]
    assert [each.image for each in several] == [str(pictures[0]), "", "", str(pictures[2])]
    with pytest.raises(UsageError, match=r"array of bytes .*got float64 \(3, 3\)"):
        model.caption(np.zeros((3, 3)))


def test_report_with_other_search_options_is_not_stored(runs: Runs) -> None:
    model = load(runs["luong"], "cpu")
    greedy = model.report("dev", beam=1)
    assert greedy.decoding.startswith("greedy") and [line.text for line in greedy.lines] == [
        each.text for each in model.caption([line.example.image.pixels for line in greedy.lines], beam=1)
    ]
    assert "decoding" not in (model.run.metrics("dev") or {}) or not str(
        model.run.metrics("dev")["decoding"]
    ).startswith("greedy")


def test_question_is_read_with_the_image(
    tmp_path: Path, pictures: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base class reads an image and a text: batches of unequal texts equal single queries."""
    monkeypatch.setattr(caption.Task, "reads_texts", True)
    train_recipe("caption-shapes", *SMALL, *STEPS, out=tmp_path / "run")
    model = load(tmp_path / "run", "cpu")
    queries = [ImageQuery(path, text) for path in pictures[:2] for text in ("a", "a large red shape", "zebra")]
    together = model.write(queries, attention=True, max_length=5)
    for query, prediction in zip(queries, together, strict=True):
        (alone,) = model.write([query], max_length=5)
        assert alone.text == prediction.text and alone.log_prob == pytest.approx(prediction.log_prob, abs=1e-4)
        assert prediction.query == query.text
        for word in prediction.words:
            assert word.source_weights.shape == (len(query.text.split()) + 1,)  # the words and END
            assert word.weights.sum() + word.source_weights.sum() == pytest.approx(1, abs=1e-5)
    assert together[0].log_prob != together[1].log_prob and together[2].unknown == ("zebra",)
    assert [each.text for each in model.predict([f"{pictures[0]}\ta", ""], batch_size=1)][1] == ""
    assert main(["predict", str(tmp_path / "run"), str(pictures[0])]) == 3
    assert "Line 1 must have an image and a text, separated by tabs" in capsys.readouterr().err


# --- commands ---------------------------------------------------------------------------------------------------------


def test_caption_prints_texts_lists_and_json(
    runs: Runs, pictures: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, first, second = str(runs["luong"]), *map(str, pictures[:2])
    expected = load(run, "cpu").caption([first, second], beam=2)
    assert main(["caption", run, first, second, "--beam", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [each.text for each in expected]
    assert main(["predict", run, first]) == 0
    assert capsys.readouterr().out == load(run, "cpu").caption(first)[0].text + "\n"
    assert main(["caption", run, first, second, "--n-best", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ||| ")[0] for line in lines] == ["0", "0", "1", "1"]
    out = tmp_path / "words.png"
    assert main(["caption", run, first, "--json", "--attention", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    (best,) = printed["candidates"]
    assert printed["caption"] == best["text"] and np.shape(best["words"][0]["weights"]) == (6, 6)
    assert decode(out.read_bytes(), "x").pixels.shape[1] > 400
    table = tmp_path / "in.csv"
    table.write_text(f"file,note\n{first},mine\n,blank\n")
    assert main(["caption", run, "--in", str(table), "--column", "file"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "file,note,caption,score,log_prob" and rows[1].startswith(f"{first},mine,")


def test_caption_options_are_checked(runs: Runs, pictures: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    run, first = str(runs["luong"]), str(pictures[0])
    for words, message in (
        ([first, first, "--attention", "x.png"], "--attention requires a single image"),
        ([first, "--attention", "x.jpg"], "must end in .png or .svg"),
        ([first, "--beam", "2", "--n-best", "3"], "--n-best must be at most --beam, 2; got 3"),
        ([first, "--in", "x.csv"], "Texts and --in cannot be used together"),
    ):
        assert main(["caption", run, *words]) == 2
        assert message in capsys.readouterr().err


def test_evaluate_prints_metrics_and_examples(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(runs["transformer"]), tmp_path / "texts.tsv"
    assert main(["evaluate", run, "--split", "test", "--beam", "2", "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert "12 images" in output and "BLEU-4" in output and "written:" in output and "correct:" in output
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert rows[0] == ["expected", "predicted", "example"] and len(rows) == 13 and rows[1][2] == "test 1"
    assert main(["evaluate", run, "--split", "test", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["images"] == 12 and {"bleu_1", "exact_match", "decoding"} <= printed.keys()
    assert printed["examples"][0]["targets"]
    assert main(["evaluate", run, "--glossary", "x"]) == 2
    assert "--glossary, --source and --reference require a translator" in capsys.readouterr().err


def test_card_and_errors_of_other_commands_name_the_caption_command(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    card = (runs["luong"] / "card.md").read_text()
    assert "seqloom caption luong picture.png" in card and "model.caption(['picture.png'])" in card
    assert "type: bleu" in card and "image-to-text" in card
    for words, message in (
        (
            ["inspect", "attention", str(runs["luong"]), "x"],
            "To plot its attention, use `seqloom caption` with",
        ),
        (["translate", str(runs["luong"]), "x"], "is a captioning model: use `seqloom caption`"),
        (["classify", str(runs["luong"]), "x"], "is a captioning model: use `seqloom caption`"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


def write_image(path: Path, kind: str) -> None:
    """Write an image file of an unusual kind, or a file that is not a usable image."""
    colour = Pillow.new("RGB", (40, 30), "red")
    frames = [Pillow.new("RGB", (8, 8), name) for name in ("red", "blue")]
    if kind == "animated":
        frames[0].save(path, format="GIF", save_all=True, append_images=frames[1:])
    elif kind == "cmyk":
        colour.convert("CMYK").save(path, format="JPEG")
    elif kind == "16-bit":
        Pillow.fromarray(np.full((9, 9), 40000, dtype=np.uint16)).save(path, format="PNG")
    elif kind == "transparent":
        Pillow.new("RGBA", (9, 9), (255, 0, 0, 0)).save(path, format="PNG")
    elif kind == "exif":
        exif = Pillow.Exif()
        exif[0x0112] = 6
        colour.save(path, format="JPEG", exif=exif)
    elif kind == "1x1":
        Pillow.new("L", (1, 1)).save(path, format="PNG")
    elif kind == "truncated":
        colour.save(path, format="PNG")
        path.write_bytes(path.read_bytes()[:60])
    elif kind == "huge":
        path.write_bytes(png_header(30_000, 30_000))
    else:
        path.write_bytes(b"no image")


@pytest.mark.parametrize("kind", ["animated", "cmyk", "16-bit", "transparent", "exif", "1x1"])
def test_unusual_images_have_captions(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    write_image(tmp_path / "x.img", kind)
    words = ["--attention", str(tmp_path / "x.svg")]
    assert main(["caption", str(runs["transformer"]), str(tmp_path / "x.img"), *words]) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 1 and ("animated image" in output.err) == (kind == "animated")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("text", "must be an image (PNG"),
        ("truncated", "is a damaged or truncated image"),
        ("huge", "must have at most 67,108,864 pixels"),
    ],
)
def test_unusable_images_are_rejected(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, message: str
) -> None:
    write_image(tmp_path / "x.png", kind)
    assert main(["caption", str(runs["transformer"]), str(tmp_path / "x.png")]) == 3
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert main(["caption", str(runs["transformer"]), str(tmp_path / "none.png")]) == 3
    assert "none.png" in capsys.readouterr().err
