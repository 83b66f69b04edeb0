"""Tasks on clips: batches, resuming, evaluation, commands, plots and bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.core.errors import UsageError
from seqloom.core.files import tensors_from_file
from seqloom.data.images import decode, encode_png
from seqloom.recipes import read_recipe
from seqloom.tasks import tag_video
from seqloom.train.events import Saved

SMALL = ["data.train=40", "data.dev=10", "data.test=10", "data.side=16", "model.image.channels=[4,8]", "batch.size=8"]
STEPS = ["train.epochs=null", "train.steps=6", "train.evaluate_every=3", "train.warmup=2"]
RECIPES = {
    "captions": ("video-digits", ["model.seq2seq.hidden=8", "decode.max_length=8", "decode.min_length=2"]),
    "clips": ("video-digits-clips", ["model.encoder.hidden=6", "model.pooling=attention"]),
    "frames": ("video-digits-frames", ["model.encoder.hidden=6", "model.crf=true"]),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("video")
    for name, (recipe, options) in RECIPES.items():
        train_recipe(recipe, *SMALL, *STEPS, *options, out=folder / name)
    return {name: folder / name for name in RECIPES}


@pytest.fixture(scope="module")
def clip(runs: dict[str, Path]) -> Path:
    """The first clip of test as an animated image."""
    frames = load(runs["frames"], "cpu").task().corpus.split("test")[0].clip.pixels[..., 0]
    first, *others = [Pillow.fromarray(frame) for frame in frames]
    path = runs["frames"].parent / "clip.gif"
    first.save(path, save_all=True, append_images=others)
    return path


def caption_of(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words[:1], str(path), *words[1:]]) == 0
    return capsys.readouterr().out


# --- batches ----------------------------------------------------------------------------------------------------------


def test_epoch_reads_every_clip_once_with_its_frame_labels(runs: dict[str, Path]) -> None:
    task: tag_video.Task = load(runs["frames"], "cpu").task()
    expected = sorted(
        (example.clip.decode().pixels.tobytes(), example.frame_labels) for example in task.corpus.split("train")
    )
    read = []
    for step in range(task.steps_per_epoch()):
        batch: Any = task.batch(3, step)
        assert batch["read"] == int(batch["words"].sum())
        for frames, mask, tags in zip(batch["frames"], batch["words"], batch["tags"], strict=True):
            assert (tags[~mask] == -1).all()
            read.append((frames[mask].numpy().tobytes(), tuple(task.names[tag] for tag in tags[mask])))
    assert sorted(read) == expected


def test_batch_depends_only_on_seed_and_step(runs: dict[str, Path]) -> None:
    for path in runs.values():
        task: Any = load(path, "cpu").task()
        first, again, other = task.batch(1, 3), task.batch(1, 3), task.batch(2, 3)
        frames = [(batch.get("source") or batch)["frames"] for batch in (first, again, other)]
        assert torch.equal(frames[0], frames[1])
        assert frames[0].shape != frames[2].shape or not torch.equal(frames[0], frames[2])


@pytest.mark.parametrize("name", RECIPES)
def test_resumed_training_gives_the_same_weights(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    recipe, options = RECIPES[name]

    def stop(event: Any) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_recipe(recipe, *SMALL, *STEPS, *options, out=tmp_path / "b", on_event=stop)
    train_recipe(recipe, *SMALL, *STEPS, *options, out=tmp_path / "b", resume=True)
    a, b = (tensors_from_file(path / "model.safetensors") for path in (runs[name], tmp_path / "b"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_frames_beyond_the_maximum_are_left_out_with_their_labels() -> None:
    recipe = read_recipe("video-digits-frames", [*SMALL, "images.frames=4"])[1]
    task = tag_video.Task.prepare(recipe)
    batch: Any = task.batch(1, 0)
    assert batch["frames"].shape[1] == batch["tags"].shape[1] == 4
    assert any("evenly spaced frames" in note for note in task.warnings())
    whole = task.corpus.split("train")[0].frame_labels
    assert task.frame_labels("train")[0] == [whole[round(i * (len(whole) - 1) / 3)] for i in range(4)]


# --- commands ---------------------------------------------------------------------------------------------------------


def test_evaluations_count_frames_and_clips(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model = load(runs["frames"], "cpu")
    report = model.report("test")
    expected, predicted = model.training_task.frame_labels("test"), model.outputs("test")[0]
    hits = [a == b for pair in zip(expected, predicted, strict=True) for a, b in zip(*pair, strict=True)]
    assert report.metrics["frame_accuracy"] == pytest.approx(np.mean(hits))
    clips = [list(a) == b for a, b in zip(expected, predicted, strict=True)]
    assert report.metrics["clip_accuracy"] == pytest.approx(np.mean(clips))
    output = caption_of(runs["frames"], capsys, "evaluate", "--split", "test")
    assert "10 clips" in output and "frames" in output and "confusion matrix" in output and "words" not in output
    assert "accuracy" in caption_of(runs["clips"], capsys, "evaluate", "--split", "test")
    assert "BLEU-4" in caption_of(runs["captions"], capsys, "evaluate", "--split", "test")
    rows = runs["frames"].parent / "rows.tsv"
    assert main(["evaluate", str(runs["frames"]), "--split", "test", "--out", str(rows)]) == 0
    assert len(rows.read_text().splitlines()) == 1 + len(hits)


def test_clip_files_are_classified(runs: dict[str, Path], clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(runs["clips"], "cpu")
    expected = model.predict_split("test")[0]
    out = clip.with_name("why.png")
    output = caption_of(runs["clips"], capsys, "classify", str(clip), "--why", "--out", str(out))
    fields = output.rstrip("\n").split("\t")
    assert fields[:2] == [expected.label, f"{expected.probability:.4f}"] and fields[2].startswith("frame ")
    assert decode(out.read_bytes(), "x").pixels.shape[1] > 500
    (answer,) = model.classify(load(runs["clips"]).task().corpus.split("test")[0].clip.pixels, why=True)
    assert answer.probability == pytest.approx(expected.probability)
    assert set(answer.why.maps) == {"occlusion", "attention"}
    both = json.loads(caption_of(runs["clips"], capsys, "classify", str(clip), "--why", "--json"))
    assert set(both["why"]["maps"]) == {"occlusion", "attention"}


def test_frames_of_files_are_labelled(runs: dict[str, Path], clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(runs["frames"], "cpu")
    expected, out = model.outputs("test")[0][0], clip.with_name("frames.png")
    output = caption_of(runs["frames"], capsys, "tag", str(clip), "--out", str(out))
    assert output.rstrip("\n").split("\t") == expected
    assert decode(out.read_bytes(), "x").pixels.shape[1] > 500
    answers = model.tag([clip, model.training_task.corpus.split("test")[0].clip.pixels])
    assert [[frame.label for frame in answer.frames] for answer in answers] == [expected, expected]
    assert all(0 < frame.probability <= 1 for frame in answers[0].frames)
    table = clip.with_name("in.csv")
    table.write_text(f"clip,note\n{clip},mine\n,blank\n")
    lines = caption_of(runs["frames"], capsys, "tag", "--in", str(table), "--column", "clip").splitlines()
    assert lines[0] == "clip,note,frames" and expected[0] in lines[1]


def test_captions_of_files_are_written(runs: dict[str, Path], clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(runs["captions"], "cpu")
    expected, out = model.report("test").lines[0].text, clip.with_name("attention.png")
    output = caption_of(runs["captions"], capsys, "caption", str(clip), "--attention", str(out))
    assert output.rstrip("\n") == expected
    assert decode(out.read_bytes(), "x").pixels.shape[1] > 500
    (prediction,) = model.caption(clip, attention=True)
    count = len(model.training_task.corpus.split("test")[0].frame_labels)
    assert all(word.weights.shape == (1, count) for word in prediction.words)
    assert all(word.weights.sum() == pytest.approx(1, abs=1e-5) for word in prediction.words)


def test_card_shows_the_command_but_no_http_request(runs: dict[str, Path]) -> None:
    for name, verb in (("clips", "classify"), ("frames", "tag"), ("captions", "caption")):
        card = (runs[name] / "card.md").read_text("utf-8")
        assert f"seqloom {verb} {name} clip.gif" in card and "understand/" not in card


def test_folder_of_frames_is_a_clip(runs: dict[str, Path], clip: Path, tmp_path: Path) -> None:
    model = load(runs["clips"], "cpu")
    for number, frame in enumerate(model.task().corpus.split("test")[0].clip.pixels):
        (tmp_path / f"{number}.png").write_bytes(encode_png(frame))
    first, second = model.classify([clip, tmp_path])
    assert first.probability == pytest.approx(second.probability)


@pytest.mark.parametrize(("name", "command"), [("clips", "classify"), ("frames", "tag"), ("captions", "caption")])
def test_unusable_clips_are_reported(
    name: str, command: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.gif").write_bytes(b"GIF89a no clip")
    (tmp_path / "empty").mkdir()
    for path, message in (("x.gif", "must be an image"), ("empty", "has no image"), ("missing.gif", "missing.gif")):
        assert main([command, str(runs[name]), str(tmp_path / path)]) in (2, 3)
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1


def test_wrong_options_and_arrays_are_reported(
    runs: dict[str, Path], clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tag", str(runs["frames"]), str(clip), "--spaces"]) == 2
    assert "--format and --spaces require texts" in capsys.readouterr().err
    assert main(["tag", str(runs["frames"]), str(clip), str(clip), "--out", "x.png"]) == 2
    assert "--out requires --in, or one clip" in capsys.readouterr().err
    assert main(["tag", str(runs["clips"]), str(clip)]) == 2
    assert "is not a text model" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"A clip must be an array of bytes .*got float64 \(3, 3\)"):
        load(runs["frames"]).tag(np.zeros((3, 3)))


def test_encoder_with_too_few_positions_is_rejected() -> None:
    encoder = "model.encoder={kind: transformer, d_model: 8, heads: 2, positions: {kind: learned, max_length: 5}}"
    recipe = read_recipe("video-digits-clips", [*SMALL, encoder, "model.pooling=mean"])[1]
    from seqloom.tasks.classify_video import Task

    with pytest.raises(UsageError, match=r"A clip has 8 frames, but the encoder has 5 positions: set model\.encoder"):
        Task.prepare(recipe)


def test_corpus_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "show", "video-digits", "train=12", "dev=5", "test=5", "--out", str(tmp_path / "clips.png")]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "clips" in output and "frames" in output and " moves " in output
    assert decode((tmp_path / "clips.png").read_bytes(), "x").pixels.shape[0] > 500
