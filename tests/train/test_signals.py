"""Ctrl-C and SIGTERM on the command line save the run, explain how to resume, and exit with 75.

The resumed run has equal weights.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from seqloom.cli.app import main
from seqloom.core.files import tensors_from_file
from seqloom.runs import record
from seqloom.runs.run import Run

RECIPE = """
task: language-model
data:
  corpus: text
  documents: line
  train: {folder}/train.txt
  dev: {folder}/dev.txt
  test_fraction: 0
tokenizer:
  kind: characters
batch:
  size: 4
  length: 16
model:
  kind: recurrent-lm
  cell: gru
  hidden: 32
  dropout: 0.1
train:
  steps: {steps}
  evaluate_every: {every}
  log_every: 1
  lr: 0.01
  device: cpu
"""


def text(letters, seed):
    generator = random.Random(seed)
    return "".join(generator.choice("abcde \n") for _ in range(letters)) + "\n"


@pytest.fixture
def recipe(tmp_path, request):
    """Recipes that spend most of their time in training (many fast steps) or in evaluation (a long dev text)."""
    long = request.param == "evaluating"
    (tmp_path / "train.txt").write_text(text(2000, 1))
    (tmp_path / "dev.txt").write_text(text(15_000 if long else 50, 2))
    steps, every = (4, 3) if long else (120, 60)
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE.format(folder=tmp_path, steps=steps, every=every))
    return request.param, path, 3 if long else 5


def interrupt(command, number, at):
    """Start seqloom, and send a signal when it reports that step. Return exit code, stdout and stderr."""
    code = "import sys; from seqloom.cli.app import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        event = json.loads(line)
        lines.append(event)
        if event["event"] == "progress" and event["step"] == at:
            time.sleep(0.1)
            process.send_signal(number)
            break
    remaining, errors = process.communicate(timeout=60)
    return process.returncode, [*lines, *map(json.loads, remaining.splitlines())], errors


@pytest.mark.parametrize(
    ("recipe", "number"), [("training", signal.SIGINT), ("evaluating", signal.SIGTERM)], indirect=["recipe"]
)
def test_signal_saves_and_exits_with_code_75(recipe, number, tmp_path, monkeypatch, capsys, contents, same):
    phase, path, at = recipe
    out = tmp_path / "runs" / "small"
    code, events, complaint = interrupt(["train", str(path), "--out", str(out), "--json"], number, at)
    assert code == 75, complaint
    assert f"seqloom train --resume {out}" in complaint
    assert "Traceback" not in complaint
    assert [event["event"] for event in events][-2:] == ["saved", "stopped"]
    assert events[-1]["step"] >= at
    if phase == "evaluating":
        assert events[-1]["step"] == at
        assert "evaluated" not in [event["event"] for event in events], "the evaluation was broken off"
    else:
        assert events[-1]["step"] < 120

    monkeypatch.setattr(record, "open_tensorboard", lambda run, step: None)
    assert main(["train", "--resume", str(out)]) == 0
    assert f"resumed at step {events[-1]['step']}" in capsys.readouterr().out
    assert main(["train", str(path), "--out", str(tmp_path / "whole")]) == 0
    last = f"step-{Run.open(out).recipe['train']['steps']}"
    assert same(contents(out / "checkpoints" / last), contents(tmp_path / "whole" / "checkpoints" / last))
    assert same(*(tensors_from_file(folder / "model.safetensors") for folder in (out, tmp_path / "whole")))
