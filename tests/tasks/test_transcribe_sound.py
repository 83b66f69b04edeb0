"""Transcription of sounds: a small model of tones, files, streams, windows, times and plots."""

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from seqloom import load, train_recipe
from seqloom.cli.app import main
from seqloom.data.corpora.digits_speech import DIGITS, SPEAKERS
from seqloom.data.files import use_data_folder
from seqloom.data.sound import SampledSound, encode_wav
from seqloom.data.sound_files import Samples

RATE = 8000
OPTIONS = [
    *("data.digits=[1,4]", "data.strings=[400,20,20]", "features.mels=16", "features.step_ms=32", "features.window=3"),
    *("features.frame_ms=64", "features.deltas=0", "features.spec_augment.bands=0", "features.spec_augment.frames=0"),
    *("features.spec_augment.warp=0", "features.spec_augment.stretch=0", "model.encoder.hidden=32", "batch.tokens=700"),
    *("model.encoder.layers=1", "model.encoder.dropout=0", "model.dropout=0", "train.epochs=null", "train.steps=260"),
    *("train.lr=0.02", "train.warmup=10", "train.evaluate_every=50"),
]


def tone(digit: int, seconds: float = 0.16) -> Samples:
    """Return the sound that stands for a digit: a tone with a frequency of its own."""
    times = np.arange(int(seconds * RATE)) / RATE
    return (0.5 * np.sin(2 * np.pi * (300 + 330 * digit) * times)).astype(np.float32)


def speech(digits: str, pause: float = 0.15) -> Samples:
    noise = np.random.default_rng(len(digits)).normal(0, 0.002, int(pause * RATE)).astype(np.float32)
    return np.concatenate([part for digit in digits for part in (noise, tone(int(digit)))] + [noise])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tones")
    (folder / "fsdd").mkdir()
    with zipfile.ZipFile(folder / "fsdd" / "recordings.zip", "w") as archive:
        for digit in range(10):
            for number, speaker in enumerate(SPEAKERS):
                for take in range(12):
                    samples = tone(digit, 0.12 + 0.01 * take) * (0.5 + 0.1 * number)
                    content = encode_wav(SampledSound("x", samples, RATE))
                    archive.writestr(f"recordings/{digit}_{speaker}_{take}.wav", content)
    with use_data_folder(folder):
        train_recipe("digits-speech", *OPTIONS, out=folder / "run")
    return folder / "run"


def write(path: Path, samples: Samples) -> Path:
    path.write_bytes(encode_wav(SampledSound("x", samples, RATE)))
    return path


def words(digits: str) -> str:
    return " ".join(DIGITS[int(digit)] for digit in digits)


def test_files_are_transcribed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["314", "9", "27"]
    paths = [str(write(tmp_path / f"{text}.wav", speech(text))) for text in texts]
    assert main(["transcribe", str(run), *paths]) == 0
    assert capsys.readouterr().out.splitlines() == [words(text) for text in texts]


def test_other_rates_are_converted(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scipy.signal import resample_poly

    samples = resample_poly(speech("805"), 441, 80).astype(np.float32)
    (tmp_path / "a.wav").write_bytes(encode_wav(SampledSound("x", samples, 44100)))
    assert main(["transcribe", str(run), str(tmp_path / "a.wav")]) == 0
    assert capsys.readouterr().out.strip() == words("805")


def test_times_are_those_of_the_tones(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.wav", speech("4281"))
    assert main(["transcribe", str(run), str(path), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    tokens = json.loads(line)["alignment"]
    assert [token["text"] for token in tokens] == words("4281").split()
    for number, token in enumerate(tokens):
        start = 0.15 + number * 0.31
        assert start - 0.1 <= token["start"] <= token["end"] <= start + 0.16 + 0.04


def test_a_long_recording_is_read_in_windows(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = "".join(str(digit) for digit in np.random.default_rng(3).integers(0, 10, 50))
    samples = speech(digits)
    path = write(tmp_path / "long.wav", samples)
    assert main(["transcribe", str(run), str(path), "--json"]) == 0
    windows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(windows) >= 6
    assert " ".join(window["text"] for window in windows) == words(digits)
    assert [window["start"] for window in windows[1:]] == [window["end"] for window in windows[:-1]]
    tokens = [token for window in windows for token in window["alignment"]]
    for number, token in enumerate(tokens):
        assert abs(token["start"] - (0.15 + number * 0.31)) < 0.2
    content = path.read_bytes()
    streamed = content[:40] + b"\xff" * 4 + content[44:]  # the length of a stream is unknown
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(streamed)))
    assert main(["transcribe", str(run), "-"]) == 0
    assert capsys.readouterr().out.split() == words(digits).split()


def test_silence_and_clipping_are_noted(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent = write(tmp_path / "silent.wav", np.zeros(RATE, dtype=np.float32))
    clipped = write(tmp_path / "clipped.wav", (10 * speech("5")).clip(-1, 1))
    assert main(["transcribe", str(run), str(silent), str(clipped)]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[0] == ""
    assert "silent: the text is empty; the first is line 1" in output.err
    assert "clipped sound" in output.err


def test_invalid_files_are_reported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.wav").write_text("one two three")
    assert main(["transcribe", str(run), str(tmp_path / "text.wav")]) == 3
    assert "must be a sound file (WAV, FLAC or OGG), but its content has none of these formats: it is text" in (
        capsys.readouterr().err
    )


def test_the_alignment_is_drawn_over_the_spectrogram(run: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", speech("4281"))
    assert main(["transcribe", str(run), str(path), "--alignment", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").stat().st_size > 10_000
    (prediction,) = load(run, "cpu").transcribe(str(path), alignment=True)
    figure = load(run, "cpu").draw_alignment(prediction)
    labels = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert labels == words("4281").split()
