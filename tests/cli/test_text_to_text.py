"""Text-to-text tasks from training to evaluation: metrics and baselines that the recipe names, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from seqloom.cli.app import main
from seqloom.core.errors import UsageError
from seqloom.core.metrics import BASELINES, HIGHER_IS_BETTER
from seqloom.evaluate.rouge import rouge
from seqloom.evaluate.text_metrics import BASELINE_VALUES, metric_of
from seqloom.predict.evaluation import LABELS
from seqloom.recipes import read_recipe, recipe_mapping, recipe_names

RECIPE = """
task: translate
data: {{corpus: parallel, train: "{folder}/train.tsv", dev: "{folder}/dev.tsv"}}
tokenizer: {{kind: words}}
batch: {{tokens: 200}}
model: {{kind: recurrent-seq2seq, hidden: 8}}
decode: {{beam: 1, max_length: 8}}
metrics: [rouge, attachment, python, exact_match]
baseline: lead
monitor: rouge_l
train: {{steps: 4, evaluate_every: 2, lr: 0.02}}
"""
TREE = "(root a )"
ROWS = [("a tree. Another sentence.", TREE), ("one a", TREE), ("two a", TREE)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("".join(f"{source} {split}\t{target}\n" for source, target in ROWS))
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder))
    assert main(["train", str(folder / "recipe.yaml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_evaluate_reports_the_named_metrics_and_the_baseline(seqloom: Any, run: Path) -> None:
    result = seqloom("evaluate", run, "--json").json
    lead = ["a tree.", "one a dev", "two a dev"]  # the first sentences of the sources
    expected = rouge(lead, [TREE] * 3)
    assert {name: result[f"baseline_{name}"] for name in expected} == expected
    assert expected["rouge_1"] > 0 and result["baseline_labelled_attachment"] == result["baseline_exact_match"] == 0
    assert {"rouge_l", "labelled_attachment", "valid_trees", "valid_python"} <= result.keys()
    assert result["baseline"] == "the first sentence of the source" and "baseline_bleu" not in result
    shown = seqloom("evaluate", run)
    values = [
        f"{name:24} {value:>9.2f}\n" for name, value in (("  ROUGE-L", 0.0), ("    baseline", expected["rouge_l"]))
    ]
    assert "".join(values) in shown.out and result["rouge_l"] == 0
    assert "\n  baseline: the first sentence of the source\n" in shown.out
    (row,) = seqloom("compare", run, "--by", "rouge_l", "--json").json["runs"]
    assert row["metrics"]["rouge_l"] == result["rouge_l"]


def test_training_selects_the_best_checkpoint_by_the_monitor(run: Path) -> None:
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    evaluations = [event["metrics"] for event in events if event["event"] == "evaluated"]
    assert len(evaluations) == 2 and all("rouge_l" in metrics for metrics in evaluations)


def test_other_pairs_are_compared_with_the_baseline(seqloom: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(f"a\t{TREE}\n")
    result = seqloom("evaluate", run, tmp_path / "a.tsv", "--json").json
    assert result["rouge_l"] == 0 and result["baseline_rouge_1"] == pytest.approx(200 / 3)  # "a" and "root a"


def test_reference_that_does_not_suit_the_metric_is_an_error(seqloom: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tno tree\n")
    result = seqloom("evaluate", run, tmp_path / "a.tsv")
    assert result.code == 3
    assert "dependency trees such as (root (nsubj John ) sleeps ), but reference 1 is 'no tree'" in result.err


def test_training_data_that_does_not_suit_the_metric_is_an_error(seqloom: Any, run: Path, tmp_path: Path) -> None:
    """The targets are checked before training."""
    (tmp_path / "dev.tsv").write_text("a\tno tree\n")
    recipe = run.parent / "recipe.yaml"
    result = seqloom("train", recipe, f"data.dev={tmp_path / 'dev.tsv'}", "--out", tmp_path / "run")
    assert result.code == 3 and "step" not in result.out
    assert "The metric attachment needs dependency trees" in result.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("monitor=rouge_l", "monitor rouge_l needs the metric rouge: add it to metrics"),
        ("monitor=labelled_attachment", "needs the metric attachment"),
        ("metrics=[rouge,rouge]", "metrics must be different; got rouge, rouge"),
        ("metrics=[rogue]", "did you mean rouge"),
        ("baseline=leed", "did you mean lead"),
    ],
)
def test_invalid_metrics_are_rejected(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_recipe("add-numbers", [override])


def test_recipes_name_baselines_and_metrics_of_their_targets() -> None:
    named = {name: recipe_mapping(name)[1] for name in recipe_names()}
    with_baseline = {name for name, recipe in named.items() if recipe.get("baseline")}
    assert {"summarize-docstrings", "parse-ewt", "signatures-docstrings", "translate-cldr"} <= with_baseline
    assert all(named[name]["task"] == "translate" for name in with_baseline)


def test_every_value_has_a_label_a_direction_and_a_baseline() -> None:
    values = [value for names in BASELINE_VALUES.values() for value in names]
    assert {*values, *(f"baseline_{value}" for value in values)} <= LABELS.keys()
    assert set(values) <= set(HIGHER_IS_BETTER)
    assert {f"baseline_{value}" for value in values} <= BASELINES.keys()
    assert all(metric_of(value) == "rouge" for value in BASELINE_VALUES["rouge"])
    assert metric_of("bleu") is metric_of("loss") is None
