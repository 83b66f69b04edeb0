import re
from pathlib import Path
from typing import Any

import pytest

TINY = ["--steps", "4", "--hidden", "5", "--lags", "2,4", "--seeds", "1,2", "--device", "cpu"]


def test_json_output_is_reproducible_and_has_results_per_lag_and_seed(seqloom: Any) -> None:
    result = seqloom("memory-test", *TINY, "--cells", "elman,gru", "--json").json
    assert (result["test"], result["lags"], result["seeds"], result["steps"]) == ("recall", [2, 4], [1, 2], 4)
    assert result["blind"] == 0.125 and not result["exact"]
    assert list(result["cells"]) == ["elman", "gru"]
    for cell in result["cells"].values():
        assert [len(row) for row in cell["success"]] == [2, 2]
        assert all(0 <= share <= 1 for row in cell["success"] for share in row)
        assert cell["hidden"] > 5 and cell["parameters"] > 0
    assert result == seqloom("memory-test", *TINY, "--cells", "elman,gru", "--json").json, (
        "equal seeds give equal results"
    )


def test_text_output_shows_mean_and_range(seqloom: Any) -> None:
    shown = seqloom("memory-test", *TINY, "--cells", "lstm", "--test", "adding", "--forget-bias", "2")
    title, heads, row = shown.out.splitlines()
    assert title.startswith("adding, accuracy after 4 steps, mean over seeds (worst–best); without memory")
    assert heads.split() == ["cell", "hidden", "parameters", "lag", "2", "lag", "4", "reach"]
    assert row.split()[:2] == ["lstm", "5"]
    mean, spread = row.split()[3:5]  # with unequal rounding, a mean could lie outside its range
    assert re.fullmatch(r"0\.\d{3}", mean) and re.fullmatch(r"\(0\.\d{3}–0\.\d{3}\)", spread)
    assert [line.partition(":")[0] for line in shown.err.splitlines()] == ["lstm, lag 2", "lstm, lag 4"]


def test_error_for_an_argument_without_option_has_a_suggestion(seqloom: Any) -> None:
    seqloom("memory-test", "adding").fails_with(2, "(adding); did you mean --test adding?")
    shown = seqloom("memory-test", "something")
    shown.fails_with(2, "(something)")
    assert "did you mean" not in shown.err


def test_single_seed_has_no_range(seqloom: Any) -> None:
    shown = seqloom("memory-test", *TINY, "--seeds", "3", "--cells", "gru", "--exact")
    assert shown.code == 0 and "worst" not in shown.out and "–" not in shown.out.splitlines()[-1]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_is_written(seqloom: Any, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    plot = tmp_path / f"memory.{ending}"
    shown = seqloom("memory-test", *TINY, "--cells", "elman", "--out", plot)
    assert shown.out.endswith(f"Wrote {plot}.\n")
    content = plot.read_bytes()
    assert content.startswith(b"\x89PNG") if ending == "png" else b"<svg" in content


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cells", "elman,lsmt"], "There is no cell 'lsmt': did you mean lstm?"),
        (["--cells", ""], "--cells must be values separated by commas, such as elman,lstm; got ''."),
        (["--cells", "elman,,gru"], "--cells must be values separated by commas"),
        (["--lags", ""], "--lags must be values separated by commas"),
        (["--lags", "0,5"], "A lag must be at least 1; got 0, 5."),
        (["--lags", "5,-3"], "A lag must be at least 1"),
        (["--lags", "5,ten"], "--lags must be whole numbers separated by commas, such as 5,10,20; got '5,ten'."),
        (["--lags", "5,5"], "must differ from each other"),
        (["--seeds", "1,1"], "must differ from each other"),
        (["--seeds", "a"], "--seeds must be whole numbers"),
        (["--test", "ading"], "There is no memory test 'ading': did you mean adding?"),
        (["--steps", "0"], "steps must be above 0"),
        (["--hidden", "0"], "hidden must be above 0"),
        (["--test", "adding", "--exact"], "exact applies only to recall"),
        (["--cells", "gru", "--forget-bias", "3"], "A forget bias needs the cell lstm"),
        (["--out", "no/such/folder/x.png"], "does not exist"),
        (["--out", "x.txt"], ".png or .svg"),
        (["--device", "gpu"], "device must be auto, cpu"),
    ],
)
def test_invalid_arguments_are_rejected_before_any_work(
    seqloom: Any, workdir: Path, words: list[str], message: str
) -> None:
    seqloom("memory-test", *words).fails_with(2, message, lines=1)
    assert not any(workdir.iterdir())
