"""The table and the figure of how many labels are enough."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks.label_shares import main, report, table

FIGURES = {
    "bilstm": {0.01: [0.6, 0.62], 0.1: [0.75, 0.77]},
    "bert": {0.01: [0.7, 0.7], 0.1: [0.82, 0.8]},
    "bert-scratch": {0.01: [0.55, 0.5], 0.1: [0.71, 0.7]},
}


def test_the_table_has_mean_and_deviation() -> None:
    head, rule, first, *_ = table(FIGURES).split("\n")
    assert head == "| model | 1 % | 10 % |" and rule == "|---|---:|---:|"
    assert first == "| bilstm | 61.0 ± 1.4 | 76.0 ± 1.4 |"
    assert table({"one": {1.0: [0.5]}}).endswith("| one | 50.0 |")


def test_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report({"dev": FIGURES, "test": FIGURES}, tmp_path)
    assert "accuracy on test, in percent" in capsys.readouterr().out
    assert json.loads((tmp_path / "shares.json").read_text())["dev"]["bert"]["0.1"] == [0.82, 0.8]
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
    assert "| bert-scratch |" in (tmp_path / "shares.md").read_text()


def test_every_share_has_its_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["label_shares.py", "--shares", "0.1", "--steps", "3", "4"])
    with pytest.raises(SystemExit):
        main()
    assert "as many --steps as --shares; got 2" in capsys.readouterr().err
