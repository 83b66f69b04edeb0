"""The table and the plot of `benchmarks/label_fractions.py`."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks.label_fractions import main, report, table

ACCURACIES = {
    "bilstm": {0.01: [0.6, 0.62], 0.1: [0.75, 0.77]},
    "bert": {0.01: [0.7, 0.7], 0.1: [0.82, 0.8]},
    "bert-scratch": {0.01: [0.55, 0.5], 0.1: [0.71, 0.7]},
}


def test_table_has_mean_and_deviation() -> None:
    head, rule, first, *_ = table(ACCURACIES).split("\n")
    assert head == "| model | 1 % | 10 % |" and rule == "|---|---:|---:|"
    assert first == "| bilstm | 61.0 ± 1.4 | 76.0 ± 1.4 |"
    assert table({"one": {1.0: [0.5]}}).endswith("| one | 50.0 |")


def test_report_writes_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report({"dev": ACCURACIES, "test": ACCURACIES}, tmp_path)
    assert "accuracy on test, in percent" in capsys.readouterr().out
    assert json.loads((tmp_path / "fractions.json").read_text())["dev"]["bert"]["0.1"] == [0.82, 0.8]
    assert (tmp_path / "fractions.png").read_bytes().startswith(b"\x89PNG")
    assert "| bert-scratch |" in (tmp_path / "fractions.md").read_text()


def test_steps_must_match_fractions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["label_fractions.py", "--fractions", "0.1", "--steps", "3", "4"])
    with pytest.raises(SystemExit):
        main()
    assert "--steps must have one value for each of --fractions; got 2" in capsys.readouterr().err
