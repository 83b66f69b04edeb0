"""The command `seqloom ladder`."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from seqloom import ladder
from seqloom.cli import ladder as command
from seqloom.config import load_yaml
from seqloom.config.yaml_text import dump_yaml
from seqloom.core.files import tensors_from_file
from seqloom.inspect.plots.measurements import draw_spread
from seqloom.train.events import Finished, Progress, Stopped

TINY = ["data.train=60", "data.dev=10", "data.test=10", "batch.size=4", "batch.length=8", "model.embedding=16"]
SHORT = ["train.epochs=null", "train.steps=6", "train.evaluate_every=3", "train.log_every=2"]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def tiny(workdir: Path) -> str:
    """A ladder with two variants and two random seeds in the current directory."""
    variants = {"elman": ["model.cell=elman"], "gru": ["model.cell=gru"]}
    content: dict[str, Any] = {"base": "toys-copy", "overrides": [*TINY, *SHORT], "variants": variants}
    content |= {"parameters": 7250, "seeds": [1, 2]}
    Path("tiny.yaml").write_text(dump_yaml(content), encoding="utf-8")
    return "tiny.yaml"


def weights(out: Path) -> dict[str, Any]:
    runs = [path for path in sorted(out.iterdir()) if path.is_dir()]
    return {
        run.name: {name: tensor.tolist() for name, tensor in tensors_from_file(run / "model.safetensors").items()}
        for run in runs
    }


def test_table_plot_and_files_are_written(seqloom: Any, tiny: str) -> None:
    shown = seqloom("ladder", tiny, "--plot", "figure.svg")
    assert shown.code == 0, shown.err
    assert "ranked by loss on dev" in shown.out and "model.hidden=" in shown.out
    assert "[4/4] gru seed 2: loss " in shown.out
    table = shown.out.partition("lowest first")[2]
    assert table.count("±") == 3 and "7,2" in table  # two variants and the title
    assert "test" not in table
    out = Path("runs/tiny")
    assert (out / "ladder.png").read_bytes().startswith(PNG)
    assert Path("figure.svg").read_text("utf-8").lstrip().startswith("<?xml")
    assert len((out / "ladder.csv").read_text().splitlines()) == 5
    stored = json.loads((out / "ladder.json").read_text())
    assert {variant["name"] for variant in stored["variants"]} == {"elman", "gru"}
    # The second time, no run is trained, and test is evaluated only with --test.
    assert not list(out.glob("*/metrics/test.json"))
    again = seqloom("ladder", tiny, "--test", "--json").objects
    assert [entry["event"] for entry in again] == ["finished before"] * 4 + ["ladder"]
    assert again[-1]["variants"] == stored["variants"]
    assert "test loss" in seqloom("ladder", tiny, "--test").out
    assert set(again[-1]["test"]) == {"elman", "gru"}
    assert len(list(out.glob("*/metrics/test.json"))) == 4


def test_plot_title_has_actual_number_of_tokens(seqloom: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tokens can be smaller than planned, because the last batch of an epoch is shorter."""
    titles: list[str] = []

    def record(rows: Any, *, title: str, **more: Any) -> Any:
        titles.append(title)
        return draw_spread(rows, title=title, **more)

    monkeypatch.setattr("seqloom.inspect.plots.measurements.draw_spread", record)
    shown = seqloom("ladder", tiny, "--seeds", "1", "train.steps=80")
    planned, read = 80 * 4 * 8, Path("runs/tiny/ladder.csv").read_text().splitlines()[1].split(",")[4]
    assert f"about {planned:,} tokens" in shown.out and int(read) < planned
    assert f"{int(read):,} tokens each" in titles[0]
    assert command.format_tokens({261_234, 262_345}) == "about 262,000"


def test_single_seed_has_no_standard_deviation(seqloom: Any, tiny: str) -> None:
    result = seqloom("ladder", tiny, "--seeds", "5", "--parameters", "12000", "train.steps=3", "--json").objects
    assert [entry["event"] for entry in result] == ["finished", "finished", "ladder"]
    assert [variant["deviation"] for variant in result[-1]["variants"]] == [None, None]
    assert all(variant["parameters"] == pytest.approx(12_000, rel=0.01) for variant in result[-1]["variants"])


def test_ctrl_c_shows_how_to_resume(seqloom: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seqloom("ladder", tiny, "--out", "whole").code == 0
    plain = command.write_line

    def interrupt(run: Any, event: Any, metric: str, write: Any) -> None:
        plain(run, event, metric, write)
        if run.number == 3 and isinstance(event, Progress):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(command, "write_line", interrupt)
    stopped = seqloom("ladder", tiny, "--out", "parts", "--test")
    assert stopped.code == 75
    assert stopped.err.endswith("To resume, run the same command: seqloom ladder tiny.yaml --out parts --test\n")
    monkeypatch.setattr(command, "write_line", plain)
    again = seqloom("ladder", tiny, "--out", "parts")
    assert again.out.count("finished before") == 2
    assert weights(Path("parts")) == weights(Path("whole"))


def test_parallel_runs_are_shown_and_stopped(seqloom: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    received: dict[str, Any] = {}

    def train_ladder(solved: Any, out: Path, stop: Any, **options: Any) -> Any:
        received.update(options)
        run = ladder.list_runs(solved, out)[2]
        yield run, Finished(6, "all steps are done", 6, {"loss": 1.5}, 7250, 99.0, 2.0, 4096)
        yield run, Stopped(6)

    monkeypatch.setattr(ladder, "train_ladder", train_ladder)
    stopped = seqloom("ladder", tiny, "--jobs", "3", "--test")
    assert received == {"jobs": 3, "splits": ("dev", "test")}
    assert "[3/4] elman seed 2: loss 1.5000, 99 tokens/s, 2 s" in stopped.out
    assert stopped.code == 75
    assert stopped.err.endswith("seqloom ladder tiny.yaml --out runs/tiny --jobs 3 --test\n")


def test_progress_bar_is_one_line() -> None:
    one = command.describe_steps({4: ("gru seed 1", 30, 100)}, 9)
    assert one == (30, 100, "30/100  [4/9] gru seed 1")
    steps = {4: ("gru seed 1", 30, 100), 5: ("lstm seed 1", 20, 100), 6: ("mut1 seed 1", 0, 100)}
    assert command.describe_steps(steps, 9) == (50, 300, "50/300  3 of 9 runs: gru seed 1 …")


def test_table_has_other_metrics_and_memory(seqloom: Any, tiny: str) -> None:
    content = load_yaml(Path(tiny)) | {"also": ["perplexity", "bits_per_character"], "seeds": [1]}
    Path(tiny).write_text(dump_yaml(content), encoding="utf-8")
    shown = seqloom("ladder", tiny).out.partition("lowest first")[2].splitlines()
    head, first = shown[1].split(), shown[2].split()
    assert " ".join(head) == (
        "variant parameters model.hidden dev loss dev perplexity dev bits_per_character tokens/s memory seconds"
    )
    run = json.loads((Path("runs/tiny/ladder.json")).read_text())["variants"][0]["runs"][0]
    assert f"{run['metrics']['bits_per_character']:.4f}" in first
    assert first[first.index("MiB") - 1] == f"{run['memory'] / 2**20:.1f}"
    rows = list(csv.DictReader(io.StringIO(Path("runs/tiny/ladder.csv").read_text())))
    assert rows[0]["memory"] == str(run["memory"])


@pytest.mark.slow
def test_killed_ladder_resumes(seqloom: Any, tiny: str) -> None:
    steps = ["train.steps=40", "train.evaluate_every=4"]
    assert seqloom("ladder", tiny, *steps, "--out", "whole").code == 0
    words = ["-m", "seqloom", "ladder", tiny, *steps, "--out", "parts"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    second = Path("parts/gru-seed1/checkpoints/latest.json")
    deadline = time.monotonic() + 120
    while not second.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert second.exists()
    assert seqloom("ladder", tiny, *steps, "--out", "parts").out.count("finished before") >= 1
    assert weights(Path("parts")) == weights(Path("whole"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name a ladder"),
        (["ladder-ml"], "did you mean ladder-lm?"),
        (["tiny.yaml", "model.cell=gru"], "model.cell cannot be set for all variants"),
        (["tiny.yaml", "train.stps=3"], "variant elman: its recipe has 1 problem"),
        (["tiny.yaml", "--seeds", "1,1"], "--seeds must be distinct"),
        (["tiny.yaml", "--plot", "figure.gif"], "must end in .png or .svg"),
        (["tiny.yaml", "--plot", "gone/figure.png"], "does not exist"),
        (["tiny.yaml", "--parameters", "60"], "no value of model.hidden gives 60 parameters"),
        (["tiny.yaml", "--jobs", "0"], "--jobs"),
    ],
)
def test_invalid_input_is_rejected_before_training(seqloom: Any, tiny: str, words: list[str], message: str) -> None:
    seqloom("ladder", *words).fails_with(2, message)
    assert not Path("runs").exists()


def test_diverged_variant_is_reported(seqloom: Any, workdir: Path) -> None:
    wild = [
        "model.activation=relu",
        "train.lr=1.0e+30",
        "train.clip_norm=null",
        "train.max_nonfinite_steps=1",
        "train.warmup=0",
    ]
    variants = {"wild": [*wild, "model.cell=elman", "train.schedule=constant"], "tame": ["model.cell=gru"]}
    content: dict[str, Any] = {"base": "toys-copy", "overrides": [*TINY, *SHORT], "variants": variants}
    content |= {"parameters": 7250, "seeds": [1]}
    Path("wild.yaml").write_text(dump_yaml(content), encoding="utf-8")
    shown = seqloom("ladder", "wild.yaml")
    assert shown.code == 0
    assert "wild seed 1: Training diverged" in shown.out
    assert shown.out.partition("lowest first")[2].count("diverged") == 1
    assert Path("runs/wild/ladder.png").read_bytes().startswith(PNG)
