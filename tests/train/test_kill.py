"""Runs that are killed by SIGKILL at random moments (fifty in the slow test) resume and finish with equal weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqloom.core.files import tensors_from_file
from seqloom.runs.run import Run

SCRIPT = Path(__file__).parent / "kill_loop.py"
KILLS = [20, pytest.param(50, marks=pytest.mark.slow)]
CURVE = ("progress", "evaluated", "skipped", "finished")
CLOCK = ("time", "tokens_per_second", "seconds_left", "seconds", "step_seconds")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def curve(path):
    entries = [entry for entry in Run.open(path).log() if entry["event"] in CURVE]
    return [{key: value for key, value in entry.items() if key not in CLOCK} for entry in entries]


@pytest.fixture(scope="module", params=KILLS)
def killed(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(SCRIPT), str(folder), str(request.param), "2024"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # with a GPU, torch starts threads, which a fork does not copy
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a child that was killed says nothing, and no other may fail"
    report = json.loads(done.stdout)
    assert len(report["hits"]) == request.param
    return folder, report


def test_kills_cover_every_training_phase(killed):
    _, report = killed
    hits = report["hits"]
    phases = [hit["phase"] for hit in hits]
    least = len(hits) // 16  # about a third of fifty kills hit each phase, but a few kills could miss a phase
    assert phases.count("saving") >= least, phases
    assert phases.count("training") + phases.count("evaluating") >= least, phases
    assert any(not hit["resumed"] for hit in hits)
    assert any(hit["resumed"] for hit in hits)
    assert len({hit["steps"] for hit in hits}) >= 5, "at different moments"
    assert any(hit["steps"] < 3 for hit in hits), "before the first checkpoint of a life"


def test_all_runs_end_with_the_same_checkpoint(killed, contents, same):
    folder, report = killed
    complete = folder / "whole"
    expected = {step: contents(complete / "checkpoints" / step) for step in ("step-33", "step-34")}
    assert report["finished"]
    for name in report["finished"]:
        path = folder / name
        names = {entry.name for entry in (path / "checkpoints").iterdir()}
        assert names == {"latest.json", "step-33", "step-34"}
        for step, parts in expected.items():
            assert same(contents(path / "checkpoints" / step), parts), f"{name}, {step}"
        assert same(tensors_from_file(path / "model.safetensors"), tensors_from_file(complete / "model.safetensors"))


def test_all_runs_have_the_same_log(killed):
    folder, report = killed
    expected = curve(folder / "whole")
    assert [entry["event"] for entry in expected].count("finished") == 1
    for name in report["finished"]:
        assert curve(folder / name) == expected, name
        assert Run.open(folder / name).metrics("dev") == Run.open(folder / "whole").metrics("dev")
        assert not list((folder / name).rglob("*.tmp"))
