"""The command lines of the benchmarks report errors in one line before anything is measured."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Return a function that runs a script and returns its exit code, standard output and standard error."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delenv("SEQLOOM_DATA", raising=False)

    def run_script(script: str, *words: object) -> tuple[Any, str, str]:
        if script == "gpu":
            pytest.importorskip("transformers")
        monkeypatch.setattr(sys, "argv", [f"benchmarks/{script}.py", *map(str, words)])
        code: Any = 0
        try:
            importlib.import_module("peers.options").run_main(importlib.import_module(script).main)
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    threads = torch.get_num_threads()
    yield run_script
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cpu --json /nonexist/x.json", "argument --json: the folder /nonexist does not exist"),
        ("cpu --json .", "argument --json: . is a folder"),
        ("cpu --data /nonexist", "argument --data: there is no folder multi30k/ in /nonexist"),
        ("cpu --set batch.tokns=3", "batch.tokns"),
        ("cpu cells training --set batch.tokns=3", "batch.tokns"),
        ("cpu --rounds 0", "argument --rounds: must be a whole number from 1; got '0'"),
        ("cpu --rounds -3", "argument --rounds: must be a whole number from 1; got '-3'"),
        ("cpu trainin", "there is no 'trainin', choose from training, cells, decoding"),
        ("cpu --peers joey", "argument --peers"),
        ("gpu --only nosuchrow", "no row has 'nosuchrow' in its name; there are encoder–decoder d 128"),
        ("gpu --json /nonexist/x.json", "argument --json"),
        ("gpu --data /nonexist", "argument --data"),
        ("beam_speed --runs /nonexist", "/nonexist"),
        ("beam_speed --json /nonexist/x.json", "argument --json"),
        ("beam_speed --beam 0", "argument --beam"),
        ("decoding_speed /nonexist", "/nonexist"),
        ("decoding_speed /nonexist --rounds 0", "argument --rounds"),
        ("cells nosuchcell", "elman, lstm, gru"),
        ("dialogue_history /nonexist", "/nonexist"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(call: Any, words: str, message: str) -> None:
    code, table, complaint = call(*words.split())
    assert code == 2 and "sentences/s" not in table
    assert complaint.count("\n") == 1 and message in complaint and "--data-dir" not in complaint


def test_data_without_multi30k_is_reported(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--data" in call("cpu", "--data", tmp_path)[2]
    monkeypatch.setenv("SEQLOOM_DATA", str(tmp_path))
    code, _, complaint = call("cpu", "training")
    assert code == 2 and complaint.startswith("cpu.py: SEQLOOM_DATA is") and complaint.count("\n") == 1
    (tmp_path / "multi30k").mkdir()  # the folder is empty
    code, _, complaint = call("cpu", "training", "--smoke")
    assert code == 2 and complaint.count("\n") == 1 and "--data-dir" not in complaint


@pytest.mark.parametrize("script", ["cpu", "gpu", "beam_speed", "decoding_speed", "cells", "dialogue_history"])
def test_every_option_has_help(call: Any, script: str) -> None:
    code, table, _ = call(script, "--help")
    assert code == 0 and "{," not in table and "{[]" not in table
    options = re.split(r"\n  (?=-)", table.partition("\noptions:\n")[2])[1:]
    assert all(len(re.split(r" {2,}|\n +", option.strip())) > 1 for option in options)


@pytest.mark.parametrize(("given", "peers"), [([], ["CTranslate2", "Hugging Face"]), (["--peers"], [])])
def test_decoding_benchmark_uses_selected_libraries(
    call: Any, monkeypatch: pytest.MonkeyPatch, given: list[str], peers: list[str]
) -> None:
    requested: dict[str, Any] = {}

    def decoding(peers_of_call: Any) -> dict[str, Any]:
        requested.update(vars(peers_of_call))
        return {}

    monkeypatch.setattr(importlib.import_module("beam_speed"), "decoding", decoding)
    assert call("cpu", "decoding", *given)[0] == 0
    assert requested["peers"] == peers


def test_small_benchmark_runs(call: Any, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    code, table, _ = call("cpu", "cells", "decoding", "--smoke", "--threads", "1", "--json", out)
    assert code == 0 and "load average" in table and "LSTM 16" in table and "CTranslate2" not in table
    assert set(json.loads(out.read_text())) == {"machine", "cells", "decoding"}


def test_growth_benchmark_measures_and_plots_every_size(call: Any, tmp_path: Path) -> None:
    code, table, _ = call("growth", "--families", "rnn", "--steps", "2", "--out", tmp_path)
    assert code == 0 and table.count("| Elman RNN |") == 4
    plots = {path.name for path in tmp_path.iterdir()}
    assert plots == {f"growth-{axis}.png" for axis in ("batch", "length", "width", "vocabulary")}


@pytest.mark.parametrize("case", [(0.1, 2, False), (1.2, 2, True), (1.2, 1, False), (2.1, 1, True)])
def test_load_of_other_programs_gives_warning(
    call: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: tuple[float, int, bool]
) -> None:
    load, threads, warns = case
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert importlib.import_module("peers.options").print_load(threads) == load
    assert ("WARNING: other programs use this machine" in capsys.readouterr().out) == warns


def test_columns_of_the_decoding_speed_table_are_separated(call: Any) -> None:
    decoding_speed = importlib.import_module("decoding_speed")
    spread = decoding_speed.Spread(12345.6, 11111.1, 23456.7)
    table = decoding_speed.format_table(
        {(beam, size): spread for beam in (1, 5) for size in (1, 128)}, {5: 9.0, 1: 9.5}
    )
    head, first, second = table.split("\n")
    assert first.split("  ")[-1].strip() == "9.5" and first.count("  12,345.6 (11,111.1–23,456.7)") == 2
    assert len(head) == len(first) == len(second)
