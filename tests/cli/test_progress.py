import math
import os
import pty
import re
import sys
import termios
import threading
import time
import types
from pathlib import Path

import pytest

from seqloom.cli._output import print_json
from seqloom.cli.app import main
from seqloom.core.progress import track
from seqloom.train import display
from seqloom.train import events as e

METRICS = {"loss": 1.5, "perplexity": 4.4817}


class Terminal:
    """A pseudo-terminal whose output is read continuously."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 160))
        self.stream = open(slave, "w", encoding="utf-8")  # noqa: SIM115 (closed in `close`)
        self._bytes = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                return
            if not piece:
                return
            self._bytes += piece

    def close(self) -> str:
        self.stream.close()
        self._reader.join()
        os.close(self._master)
        return self._bytes.decode()


def test_pipe_prints_progress_by_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes one second. Of 25 steps, only two steps and the last step are printed, with all evaluations."""
    now = 0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with display.display_events() as show:
        for now in range(1, 26):
            show(e.Progress(now, 25, {"loss": 1.5}))
            if now == 3:
                show(e.Evaluated(now, "dev", METRICS, best=True))
    lines = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["step 3", "step 10/25", "step 20/25", "step 25/25"]


@pytest.mark.parametrize(("accuracy", "is_below"), [(0.55, True), (0.6, True), (0.61, False)])
def test_end_of_training_compares_with_the_majority_baseline(accuracy: float, is_below: bool) -> None:
    line = display.describe(e.Finished(9, "all", 9, {"accuracy": accuracy, "majority": 0.6}, 1, 1.0, 1.0))
    assert ("note: the model is no better than always predicting the most frequent label" in str(line)) == is_below


def test_terminal_shows_a_progress_bar_below_permanent_lines(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    try:
        code = main(["train", str(runs / "toys/recipe.yaml"), "--out", str(tmp_path / "run")])
    finally:
        monkeypatch.undo()
        shown = terminal.close()
    assert code == 0
    assert "━" in shown and "\x1b[" in shown  # the bar is redrawn
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    bars = re.findall(r"(\d+)/24  loss [\d.]+  perplexity [\d.]+  [\d,]+ tokens/s  \d+:\d\d left", plain)
    assert bars and bars == sorted(bars, key=int)
    lines = [line.strip() for line in plain.replace("\r", "\n").split("\n")]
    assert sum("dev: loss" in line for line in lines) == 3  # permanent lines above the bar
    assert any(line.startswith("finished at step 24") for line in lines)
    assert any(line.startswith("The run is in") for line in lines)


def test_json_on_a_terminal_has_no_progress_bar(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    try:
        with display.display_events(print_json) as show:
            show(e.Evaluated(3, "dev", {"loss": math.inf}, True))
    finally:
        monkeypatch.undo()
        shown = terminal.close()
    assert shown == '{"event": "evaluated", "step": 3, "split": "dev", "metrics": {"loss": null}, "best": true}\r\n'


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (e.Started(0, 10, 1234, "cpu", False), "1,234 parameters on cpu"),
        (e.Started(4, 10, 1234, "cuda", True), "resumed at step 4: 1,234 parameters on cuda"),
        (e.Started(0, 10, 1234, "cpu", False, ("x is projected",)), "1,234 parameters on cpu\nx is projected"),
        (e.Started(0, 0, 0, "cpu", False), "counting"),
        (
            e.Progress(2, 10, {"loss": 1.5, "learning_rate": 0.1}, 12345.6, 3725),
            "step 2/10  loss 1.5000  perplexity 4.48  12,346 tokens/s  1:02:05 left",
        ),
        (e.Progress(2, 10, {"loss": 6.0}), "step 2/10  loss 6.0000  perplexity 403.43  0 tokens/s  0:00 left"),
        (e.Progress(2, 10, {"loss": 30.0}), "step 2/10  loss 30.0000  perplexity huge  0 tokens/s  0:00 left"),
        (e.Progress(2, 10, {"loss": math.nan}), "step 2/10  loss nan  perplexity nan  0 tokens/s  0:00 left"),
        (e.Progress(3, 6, {"order": 3, "ngrams": 83}), "step 3/6  order 3: 83 n-grams"),
        (
            e.Progress(3, 6, {"restart": 1.0, "iteration": 3.0, "loss": 2.5}, 1000.0, 61.0),
            "step 3/6  restart 1, iteration 3: loss 2.50000  1,000 tokens/s  at most 1:01 left",
        ),
        (e.Evaluated(8, "dev", METRICS, True), "step 8  dev: loss 1.5000  perplexity 4.4817  (best)"),
        (e.Evaluated(8, "dev", METRICS, False), "step 8  dev: loss 1.5000  perplexity 4.4817"),
        (e.Saved(8, "step-8"), None),
        (
            e.BatchSplit(8, 64, 2),
            "step 8: out of memory; batches of at least 64 rows are split into 2 microbatches, "
            "which does not change the updates",
        ),
        (e.Skipped(8, "the loss is nan"), "step 8: the update was skipped: the loss is nan"),
        (e.Damaged(8, "step-8", "it is cut short"), "checkpoint step-8 is skipped: it is cut short"),
        (e.Stopped(8), "stopped at step 8; all progress is saved"),
        (
            e.Finished(8, "all steps are done", 8, METRICS, 1234, 99.0, 61.2),
            "finished at step 8 after 1:01: all steps are done",
        ),
        (
            e.Finished(8, "all steps are done", 8, METRICS, 1234, 99.0, 61.2, 4096, 44.6),
            "finished at step 8 after 1:01 (0:45 in training steps): all steps are done",
        ),
        (e.Prepared(8, 12.34, 3), "step 8  CUDA graphs of 3 batch shapes captured in 12.3 s"),
        (e.Prepared(8, 0.0, 0, ("as it is",)), "step 8  as it is"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, e.Event) else None,
)
def test_every_event_is_described(event: e.Event, line: str | None) -> None:
    assert display.describe(event) == line


def test_nonfinite_values_are_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    with display.display_events(print_json) as show:
        show(e.Progress(2, 10, {"loss": math.nan}, math.inf))
    assert '"loss": null' in capsys.readouterr().out


# --- notebooks --------------------------------------------------------------------------------------------------------


class Cell:
    """The output of a notebook cell. It replaces IPython, which need not be installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.versions: list[str] = []
        interactive = types.ModuleType("IPython")
        interactive.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
        module = types.ModuleType("IPython.display")
        module.HTML = str  # type: ignore[attr-defined]
        module.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", interactive)
        monkeypatch.setitem(sys.modules, "IPython.display", module)

    def display(self, html: str, display_id: bool) -> "Cell":
        assert display_id and not self.versions  # displayed once and then updated
        self.update(html)
        return self

    def update(self, html: str) -> None:
        self.versions.append(html)


def test_notebook_shows_a_bar_until_training_has_finished(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, now = Cell(monkeypatch), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with display.display_events() as show:
        show(e.Started(0, 100, 1234, "cpu", False, notes=("<b>a note</b>",)))
        for step in range(1, 101):  # ten steps per second
            now += 0.1
            show(e.Progress(step, 100, {"loss": 1.5}))
        show(e.Evaluated(100, "dev", METRICS, best=True))
        last = cell.versions[-1]
        show(e.Finished(100, "all steps are done", 100, METRICS, 1234, 1.0, 10.0))
    assert "dev: loss 1.5000" in last and "<progress" in last
    assert "<progress" not in cell.versions[-1] and "finished at step 100" in cell.versions[-1]
    assert len(cell.versions) < 45  # the bar is updated four times per second
    assert all("<b>" not in html and "&lt;b&gt;a note&lt;/b&gt;" in html for html in cell.versions)
    assert capsys.readouterr().out == ""


def test_notebook_shows_and_removes_the_progress_of_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, now = Cell(monkeypatch), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with display.show_preparation():
        for _ in track(["a" * 50] * 4, "learning merges", ["a" * 200]):
            now += 0.25
    shown = [f"<pre>learning merges: {part}% of 200 characters</pre>" for part in (50, 100)]
    assert cell.versions == [*shown, ""]


def test_many_lines_are_shortened_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(monkeypatch)
    with display.display_events() as show:
        for step in range(1, 101):
            show(e.Evaluated(step, "dev", METRICS, best=False))
    assert "(88 earlier lines)" in cell.versions[-1] and cell.versions[-1].count("dev:") == 12
