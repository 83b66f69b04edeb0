"""The results in the documentation equal the results of the shipped code.

`docs/explanations/ladder-runs.csv` contains the value of every run that the CPU tables of `docs/explanations/ladder.md`
summarize. The tables must agree with these values. The slow tests train one fast row of each table again with one
random seed.
"""

import csv
import dataclasses
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.label_baselines import measure
from benchmarks.settings import format_tables, read_rows

from seqloom.cli.app import main
from seqloom.ladder import collect_results, read_ladder, solve, train_ladder
from seqloom.predict.loader import load

DOCS = Path(__file__).parents[1] / "docs" / "explanations"
COLUMNS = {  # the split and the metric of each table heading
    "bits per character": ("dev", "bits_per_character"),
    "BLEU": ("dev", "bleu"),
    "loss": ("dev", "loss"),
    "loss on dev": ("dev", "loss"),
    "BLEU, test": ("test", "bleu"),
}
Runs = dict[tuple[str, str, str, str], dict[int, float]]  # ladder, variant, split, metric -> value by seed


def read_runs() -> Runs:
    runs: Runs = {}
    with (DOCS / "ladder-runs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["ladder"], row["variant"], row["split"], row["metric"]
            runs.setdefault(key, {})[int(row["seed"])] = float(row["value"])
    return runs


def read_table(page: str, command: str) -> list[dict[str, str]]:
    """Return the rows of the first table after a command."""
    match = re.search(rf"`seqloom {command}[ `].*?\n((?:\|[^\n]*\n)+)", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert match, f"{page} has no table after `seqloom {command}`"
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in match[1].splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def published_cells() -> Iterator[tuple[str, str, str, str]]:
    """Yield ladder, variant, heading and text of every cell with recorded runs for several random seeds."""
    runs = read_runs()
    for ladder in dict.fromkeys(key[0] for key in runs):
        for row in read_table("ladder.md", f"ladder {ladder}"):
            variant = next(iter(row.values())).strip("`")
            for heading in COLUMNS.keys() & row.keys():
                if len(runs.get((ladder, variant, *COLUMNS[heading]), ())) > 1:
                    yield ladder, variant, heading, row[heading]


@pytest.mark.parametrize(("ladder", "variant", "heading", "cell"), sorted(published_cells()))
def test_published_tables_match_the_results_of_the_runs(ladder: str, variant: str, heading: str, cell: str) -> None:
    values = list(read_runs()[ladder, variant, *COLUMNS[heading]].values())
    mean, _, deviation = cell.replace("*", "").partition(" ± ")
    expected = f"{statistics.fmean(values):.{decimals(mean)}f}"
    if deviation:
        expected += f" ± {statistics.stdev(values):.{decimals(deviation)}f}"
    assert cell.replace("*", "") == expected


def test_tables_of_settings_follow_from_runs() -> None:
    page = (DOCS / "settings.md").read_text("utf-8")
    assert page.partition("were not measured.\n\n")[2].strip() == format_tables(read_rows(DOCS / "settings.csv"))
    assert format_tables(read_rows(DOCS / "settings-gpu.csv")) in page


def test_settings_are_not_selected_on_test() -> None:
    searched = {("classify", "sst2"), ("tag", "ewt"), ("translate", "tatoeba"), ("language-model", "wikitext2")}
    rows = [row for row in read_rows(DOCS / "settings.csv") if (row["task"], row["corpus"]) in searched]
    assert len(rows) > 100 and not [row for row in rows if row["test"]]


def decimals(number: str) -> int:
    return len(number.partition(".")[2])


# Rows that train in half a minute. The original machine reproduces all digits. Other machines round sums differently.
# Each tolerance is a few times the effect of a change of the kernels.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ladder", "variant", "tolerance"),
    [
        ("ladder-lm", "gru", 0.02),
        ("ladder-depth", "one", 0.02),
        ("ladder-translate", "scaled-dot", 0.5),
        ("ladder-transformer", "one-head", 1.0),
    ],
)
def test_published_row_is_reproduced(ladder: str, variant: str, tolerance: float, tmp_path: Path) -> None:
    full = solve(read_ladder(ladder, seeds=[1]))
    alone = dataclasses.replace(full, variants=tuple(row for row in full.variants if row.name == variant))
    for _ in train_ladder(alone, tmp_path / "runs"):
        pass
    measured = collect_results(alone, tmp_path / "runs").variants[0].mean
    assert measured == pytest.approx(read_runs()[ladder, variant, "dev", full.metric][1], abs=tolerance)


@pytest.mark.slow
def test_published_accuracies_on_languages_are_reproduced(tmp_path: Path) -> None:
    row = next(row for row in read_table("results.md", "train languages") if row["corpus"] == "`languages`")
    assert main(["train", "languages", "seed=1", "--out", str(tmp_path / "run")]) == 0
    accuracy = 100 * load(tmp_path / "run").evaluate("test")["accuracy"]
    baselines = measure("languages")["test"]
    first = float(row["seeds 1, 2, 3 on test"].split(",")[0])
    assert accuracy == pytest.approx(first, abs=1.0)  # six times the standard deviation over the random seeds
    assert 100 * baselines["copy"] == pytest.approx(float(row["copy, test"]), abs=0.3)
    assert 100 * baselines["naive Bayes"] == pytest.approx(float(row["naive Bayes, test"]), abs=0.3)
