"""Labels of the frames of sounds: batches, resuming, evaluation, commands and plots."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.config import ConfigError
from seqloom.core.files import tensors_from_file
from seqloom.data.sound import SampledSound, encode_wav
from seqloom.recipes import read_recipe
from seqloom.tasks import tag_sound
from seqloom.train.events import Saved

pytest.importorskip("espeakng_loader")
OPTIONS = [
    *("data.train=16", "data.dev=4", "data.test=4", "features.rate=8000", "features.mels=12", "features.step_ms=20"),
    *("batch.tokens=600", "model.encoder.hidden=8", "features.spec_augment.bands=3", "features.spec_augment.frames=3"),
    *("train.epochs=null", "train.steps=6", "train.evaluate_every=3", "train.warmup=2"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run"
    train_recipe("phonemes-frames", *OPTIONS, out=path)
    return path


@pytest.fixture(scope="module")
def sound(run: Path) -> Path:
    """The first sound of test as a file."""
    signal = load(run, "cpu").task().corpus.split("test")[0].signal
    path = run.parent / "test.wav"
    path.write_bytes(encode_wav(SampledSound("x", signal.read(), signal.rate)))
    return path


def test_batches_contain_every_frame_with_its_label(run: Path) -> None:
    task: tag_sound.Task = load(run, "cpu").task()
    read, count = list[str](), 0
    for step in range(task.steps_per_epoch()):
        batch: Any = task.batch(1, step)
        assert batch["vectors"].shape[:2] == batch["tags"].shape == batch["words"].shape
        assert torch.equal(batch["mask"], batch["words"])
        read += [task.names[tag] for tag in batch["tags"][batch["words"]].tolist()]
        count += int(batch["mask"].sum())
    labels = [label for labels in task.frame_labels("train") for label in labels]
    assert sorted(read) == sorted(labels) and count == len(task.vectors("train").values) == len(labels)


def test_batches_depend_only_on_seed_and_step(run: Path) -> None:
    task: Any = load(run, "cpu").task()
    first, again, other = task.batch(1, 2), task.batch(1, 2), task.batch(1, 2 + task.steps_per_epoch())
    assert torch.equal(first["vectors"], again["vectors"])
    assert first["vectors"].shape != other["vectors"].shape or not torch.equal(first["vectors"], other["vectors"])


def test_resumed_training_gives_the_same_weights(run: Path, tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_recipe("phonemes-frames", *OPTIONS, out=tmp_path / "b", on_event=stop)
    train_recipe("phonemes-frames", *OPTIONS, out=tmp_path / "b", resume=True)
    a, b = (tensors_from_file(path / "model.safetensors") for path in (run, tmp_path / "b"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_evaluation_counts_frames(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(run, "cpu")
    report = model.report("test")
    pairs = [
        (expected, predicted)
        for rows in zip(model.task().frame_labels("test"), model.outputs("test")[0], strict=True)
        for expected, predicted in zip(*rows, strict=True)
    ]
    assert report.metrics["frame_accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    assert main(["evaluate", str(run), "--split", "test"]) == 0
    output = capsys.readouterr().out
    assert "4 recordings" in output and "frame accuracy" in output
    rows = run.parent / "rows.tsv"
    assert main(["evaluate", str(run), "--split", "test", "--out", str(rows)]) == 0
    assert len(rows.read_text().splitlines()) == len(pairs) + 1


def test_tag_prints_segments_that_cover_the_sound(run: Path, sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", str(run), str(sound), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    segments = json.loads(line)["segments"]
    assert all(a["end"] == pytest.approx(b["start"], abs=1e-3) for a, b in pairwise(segments))
    assert all(a["label"] != b["label"] for a, b in pairwise(segments))
    model = load(run, "cpu")
    frames = len(model.features.vectors(next(model.features.read_file(sound))))
    assert segments[-1]["end"] - segments[0]["start"] == pytest.approx(frames * 0.02, abs=1e-3)
    assert main(["tag", str(run), str(sound), "--out", str(run.parent / "tags.png")]) == 0
    assert capsys.readouterr().out.startswith(f"{segments[0]['start']:.2f} {segments[0]['label']}")
    assert (run.parent / "tags.png").stat().st_size > 10_000


def test_probabilities_belong_to_the_labels(run: Path, sound: Path) -> None:
    model = load(run, "cpu")
    (answer,) = model.tag(str(sound))
    assert all(1 / len(model.labels) <= segment.probability <= 1 for segment in answer.segments)


def test_bad_files_and_options_are_reported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.wav").write_text("hello")
    assert main(["tag", str(run), str(tmp_path / "text.wav")]) == 3
    assert "must be a sound file" in capsys.readouterr().err
    assert main(["tag", str(run), "x.wav", "--spaces"]) == 2
    assert "this run is a model that labels the frames of sounds" in capsys.readouterr().err
    with pytest.raises((ConfigError, Exception), match="stretch must be 0"):
        read_recipe("phonemes-frames", [*OPTIONS, "features.spec_augment.stretch=0.1"])


def test_long_sounds_are_read_in_windows(run: Path, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 8000 * 50).astype(np.float32)
    (tmp_path / "long.wav").write_bytes(encode_wav(SampledSound("x", samples, 8000)))
    answers = load(run, "cpu").tag(str(tmp_path / "long.wav"))
    assert len(answers) >= 3
    starts = [answer.segments[0].start for answer in answers]
    assert starts == sorted(starts) and answers[-1].segments[-1].end == pytest.approx(50, abs=0.05)
