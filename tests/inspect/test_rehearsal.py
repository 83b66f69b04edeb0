"""The rehearsal predicts the cost of the real training run."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import classify_recipe, pretrained_run

from seqloom.config import to_mapping
from seqloom.core.errors import DataError
from seqloom.inspect import rehearsal
from seqloom.inspect.rehearsal import Rehearsal, rehearse
from seqloom.recipes import read_recipe
from seqloom.runs.run import Run
from seqloom.tasks.classify import Task as Classify
from seqloom.tasks.language_model import Task

TRAIN = """
import sys
from seqloom.cli.app import main
code = main(sys.argv[1:])
import torch
from seqloom.inspect.rehearsal import peak_memory
gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
print(code, peak_memory(), gpu)
"""
TOYS = ["toys-copy", "data.train=2000", "data.dev=100", "data.test=20", "train.steps=20"]
SMALL = [*TOYS, "batch.size=8", "model.hidden=32"]
SHAPES = {
    "small": SMALL,
    "plain loop": [*TOYS, "model.cell=gru-cho", "model.hidden=64", "batch.size=256", "batch.length=16"],
    "many words": [  # little computation and much memory, because four values are stored for each parameter
        "lm-word-lstm",
        "model.hidden=256",
        "model.embedding=256",
        "batch.size=8",
        "batch.length=16",
        "batch.eval_size=32",
        "train.steps=20",
    ],
}


def measured(words: list[str], out: Path) -> tuple[int, int]:
    """Return the peak memory of a real training run in bytes, for the process and for the GPU."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, "train", *words, "--out", str(out)], capture_output=True, text=True
    )
    code, peak, gpu = done.stdout.split()[-3:]
    assert code == "0", done.stderr
    return int(peak), int(gpu)


@pytest.mark.slow
def test_predicted_peak_is_within_20_percent(tmp_path: Path) -> None:
    predicted: dict[str, int] = {}
    for name, words in SHAPES.items():
        result = rehearse(read_recipe(words[0], words[1:])[1])
        assert result.failure is None and result.complete
        assert result.updates >= rehearsal.MIN_UPDATES and not result.skipped
        assert result.memory is not None and result.seconds_per_update and result.evaluation_seconds
        peak, gpu = measured(words, tmp_path / name)
        assert result.memory == pytest.approx(peak, rel=0.2), name
        if gpu:
            assert result.gpu_allocated == pytest.approx(gpu, rel=0.2), name
        predicted[name] = result.gpu_allocated or result.memory
    # Control: a constant that is equal for all recipes would not be accurate enough.
    assert predicted["many words"] > 1.2 * predicted["small"]


def test_ngram_estimation_is_rehearsed_in_full(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a cat sat on a mat\n" * 30)
    text = ["data.corpus=text", f"data.train={tmp_path / 'a.txt'}", "model.order=2", "tokenizer.min_count=1"]
    result = rehearse(read_recipe("ngram-kn5", text)[1])
    assert result.failure is None and result.complete
    assert result.sizes["2-grams"] > 5 and result.memory


def test_failed_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    ends = {"exit 3": "the last line", "kill -9 $$": "out of memory: the system killed the trial run"}
    for end, words in ends.items():
        python.write_text(f"#!/bin/sh\necho a line >&2\necho the last line >&2\n{end}\n")
        python.chmod(0o755)
        assert rehearse(read_recipe("toys-copy")[1]).failure == words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DataError("gone.txt is not there"), "gone.txt is not there"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4 GiB"), "out of memory: CUDA out of memory."),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory: you tried"),
        (MemoryError(), "out of memory: no message"),
    ],
)
def test_out_of_memory_errors_are_distinguished_from_other_errors(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(recipe: Any, folder: Path) -> Rehearsal:
        raise error

    monkeypatch.setattr(rehearsal, "run_rehearsal", fail)
    monkeypatch.setattr(rehearsal, "_prefer_oom_kill", lambda: None)
    order = {"recipe": to_mapping(read_recipe("toys-copy")[1]), "data_dir": None}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(order)))
    assert rehearsal.main() == 0
    assert json.loads(capsys.readouterr().out)["failure"].startswith(words)


def test_long_evaluation_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "MAX_EVALUATION_SECONDS", 0.05)

    def slow(*arguments: Any) -> None:
        for _ in range(500):
            time.sleep(0.02)

    monkeypatch.setattr(Task, "evaluate", slow)
    result = rehearsal.run_rehearsal(read_recipe(SMALL[0], SMALL[1:])[1], tmp_path)
    assert not result.complete
    assert result.evaluation_seconds is not None and result.evaluation_seconds < 5


def test_rehearsal_trains_all_layers_that_will_be_unfrozen(tmp_path: Path) -> None:
    source = pretrained_run(tmp_path / "gpt", "gpt")
    recipe = classify_recipe(tmp_path, source, "train.unfreeze_every=50", "train.freeze=1", "train.layer_decay=0.9")
    rehearsal.run_rehearsal(recipe, tmp_path)
    saved = Run.open(tmp_path / "rehearsal").store(1).load()
    assert saved is not None
    model = Classify.prepare(recipe).model()
    above = [parameter for level in model.layer_groups()[1:] for parameter in level]
    assert len(saved.parts["optimizer"]["state"]) == len(above)  # all trainable layers have gradients
