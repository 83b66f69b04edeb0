import re
from pathlib import Path
from typing import Any

import pytest

KINDS = ["self-attention", "windowed", "recurrent", "convolution", "dilated"]
TINY = ["--lengths", "4,8,16", "--d-model", "8", "--heads", "2", "--window", "2", "--repeats", "2", "--device", "cpu"]


def test_json_output_has_times_paths_and_exponents(seqloom: Any) -> None:
    shown = seqloom("layers", *TINY, "--json", "--cell", "gru", "--kernel", "5", "--threads", "1", "--seed", "3")
    result = shown.json
    assert (result["lengths"], result["d_model"], result["heads"], result["repeats"]) == ([4, 8, 16], 8, 2, 2)
    assert (result["device"], result["threads"], result["kernel"], result["cell"]) == ("cpu", 1, 5, "gru")
    assert list(result["layers"]) == KINDS
    recurrent, dilated = result["layers"]["recurrent"], result["layers"]["dilated"]
    assert [len(passes) for passes in recurrent["seconds"]] == [2, 2, 2]
    assert recurrent["time"] == pytest.approx([sum(passes) / 2 for passes in recurrent["seconds"]])
    assert recurrent["path"] == [4, 8, 16] and dilated["path"] == [2, 2, 3]
    assert recurrent["exponents"]["path"] == pytest.approx(1) and recurrent["exponents"]["count"] == pytest.approx(1)
    assert recurrent["fitted"] == [8, 16] and recurrent["failures"] == [None, None, None]
    assert (recurrent["complexity"], recurrent["sequential"], recurrent["longest_path"]) == ("O(n·d²)", "O(n)", "O(n)")
    assert all(bytes_ > 0 for layer in result["layers"].values() for bytes_ in layer["memory"])
    lines = [line.partition(":")[0] for line in shown.err.splitlines()]
    assert lines == [f"{kind}, n = {n}" for n in (4, 8, 16) for kind in KINDS]


def test_text_output_has_a_table_per_measure(seqloom: Any) -> None:
    shown = seqloom("layers", *TINY, "--threads", "1")
    assert shown.code == 0
    blocks = shown.out.split("\n\n")
    assert blocks[0] == (
        "d_model 8, 2 heads, window 2 on either side, cell lstm, kernel 3, batch 1; float32 on a CPU, 1 thread"
    )
    titles = [block.splitlines()[0] for block in blocks[1:5]]
    assert titles == [
        "forward and backward, ms: median of 2 (fastest–slowest)",
        "peak memory of a pass, MiB",
        "sequential operations",
        "path length from y_n to x_1, in layers (recurrent: in steps)",
    ]
    for block in blocks[1:5]:
        heads, *rows = block.splitlines()[1:]
        assert re.split(r"\s{2,}", heads.strip()) == ["n = 4", "n = 8", "n = 16"]
        assert [row.split()[0] for row in rows] == KINDS
    median = re.search(r"recurrent\s+([\d.,]+) \(([\d.,]+)–([\d.,]+)\)", blocks[1])
    assert median is not None
    fastest, middle, slowest = (float(median[place]) for place in (2, 1, 3))
    assert fastest <= middle <= slowest
    table = [re.split(r"\s{2,}", line) for line in blocks[5].splitlines()[:6]]
    assert table[0][:6] == ["layer", "complexity", "counted", "time", "memory", "sequential"]
    assert [row[0] for row in table[1:]] == KINDS and all(len(row) == 9 for row in table)
    output = [(row[1], row[5], row[7]) for row in table[1:]]
    assert output == [
        ("O(n²·d)", "O(1)", "O(1)"),
        ("O(r·n·d)", "O(1)", "O(n/r)"),
        ("O(n·d²)", "O(n)", "O(n)"),
        ("O(k·n·d²)", "O(1)", "O(n/k)"),
        ("O(k·n·d²)", "O(1)", "O(log_k n)"),
    ]
    assert table[3][6] == "n^0.95, 37 → 133" and table[3][8] == "n^1.00, 4 → 16"
    assert "over n = 8 … 16" in blocks[5]


def test_one_length_has_no_exponent(seqloom: Any) -> None:
    shown = seqloom("layers", *TINY, "--lengths", "6", "--kinds", "dilated")
    assert "The exponent can be computed only from two or more lengths." in shown.out.splitlines()
    assert re.search(r"O\(k·n·d²\)\s+–\s+–", shown.out)


def test_layer_that_runs_out_of_memory_is_noted(seqloom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux keeps such a limit")
    monkeypatch.setattr("seqloom.inspect.views.layers.free_memory", lambda device: 60 * 2**20)
    words = ["--lengths", "64,128,4096", "--kinds", "self-attention,dilated", "--weights"]
    shown = seqloom("layers", *TINY, *words, "--repeats", "1")
    assert shown.code == 0
    assert "self-attention, n = 4,096: out of memory; 60 MiB were free\n" in shown.err
    assert "note: self-attention, n = 4,096: out of memory; 60 MiB were free" in shown.out
    assert re.search(r"self-attention\s+[\d.]+\s+[\d.]+\s+–\n", shown.out)
    assert "n = 64 … 128 (self-attention); n = 128 … 4,096 (dilated)" in shown.out
    assert seqloom("layers", *TINY, *words, "--json").json["layers"]["self-attention"]["time"][2] is None


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_is_written(seqloom: Any, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    plot = tmp_path / f"layers.{ending}"
    shown = seqloom("layers", *TINY, "--kinds", "self-attention,recurrent", "--batch", "2", "--out", plot)
    assert shown.err.endswith(f"Wrote {plot}.\n")
    content = plot.read_bytes()
    assert content.startswith(b"\x89PNG") if ending == "png" else b"<svg" in content


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--lengths", "64,many"],
            "--lengths must be whole numbers separated by commas, such as 64,256,1024; got '64,many'.",
        ),
        (["--lengths", ""], "--lengths must be values separated by commas"),
        (["--lengths", "64,,128"], "--lengths must be values separated by commas"),
        (["--lengths", "64,64"], "The lengths must differ from each other; got 64, 64."),
        (["--lengths", "0"], "A length must be at least 1; got 0."),
        (["--kinds", "convolutoin"], "There is no layer 'convolutoin': did you mean convolution?"),
        (["--kinds", ""], "--kinds must be values separated by commas, such as self-attention,recurrent; got ''."),
        (["--d-model", "100"], "D_model must be divisible by heads; got 100 and 8."),
        (["--d-model", "0"], "--d-model must be at least 1; got 0."),
        (["--d-model", "7", "--heads", "7"], "needs an even --d-model; got 7."),
        (["--heads", "0"], "Heads must be at least 1; got 0."),
        (["--kernel", "4"], "Kernel must be odd and at least 3"),
        (["--kernel", "1"], "Kernel must be odd and at least 3"),
        (["--window", "0"], "Window must be at least 1; got 0."),
        (["--cell", "lsmt"], "No cell is called 'lsmt': did you mean lstm?"),
        (["--batch", "0"], "batch must be at least 1; got 0."),
        (["--repeats", "0"], "repeats must be at least 1; got 0."),
        (["--threads", "0"], "threads must be at least 1; got 0."),
        (["--out", "no/such/folder/x.png"], "does not exist"),
        (["--out", "x.txt"], ".png or .svg"),
        (["--device", "gpu"], "device must be auto, cpu"),
    ],
)
def test_invalid_arguments_are_rejected_before_any_work(
    seqloom: Any, workdir: Path, words: list[str], message: str
) -> None:
    seqloom("layers", *words).fails_with(2, message, lines=1)
    assert not any(workdir.iterdir())


def test_invalid_number_is_rejected(seqloom: Any) -> None:
    seqloom("layers", "--d-model", "wide").fails_with(2, "--d-model must be a whole number; got 'wide'")
