"""Ladders: configuration, equal sizes, equal budgets and results."""

import csv
import dataclasses
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom import ladder
from seqloom.config import to_mapping
from seqloom.config.yaml_text import dump_yaml, parse_yaml
from seqloom.core.errors import SeqloomError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.data.files import data_folder
from seqloom.inspect.rehearsal import nearest_size
from seqloom.nn.cells import CELLS
from seqloom.predict.loader import load
from seqloom.recipes import recipe_mapping
from seqloom.train.events import Finished, Saved, Started, Stopped
from seqloom.train.stop import Stop

TINY = ["data.train=60", "data.dev=10", "data.test=10", "batch.size=4", "batch.length=8", "model.embedding=16"]
SHORT = ["train.epochs=null", "train.steps=6", "train.evaluate_every=3", "train.log_every=2"]
TWO = {"elman": ["model.cell=elman"], "gru": ["model.cell=gru"]}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Return a function that writes a small valid ladder with changes."""

    def make(**changes: Any) -> Path:
        plain: dict[str, Any] = {"base": "toys-copy", "overrides": [*TINY, *SHORT], "variants": TWO}
        plain |= {"parameters": 7250, "seeds": [1, 2]}
        path = tmp_path / "tiny.yaml"
        path.write_text(dump_yaml({**plain, **changes}), encoding="utf-8")
        return path

    return make


def weights(out: Path) -> dict[str, Any]:
    return {
        run.name: {name: tensor.tolist() for name, tensor in tensors_from_file(run / "model.safetensors").items()}
        for run in sorted(out.iterdir())
    }


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stub_pretrained_runs")
@pytest.mark.parametrize("name", ladder.ladder_names())
def test_shipped_ladders_have_equal_sizes_and_budgets(name: str) -> None:
    read = ladder.read_ladder(name)
    assert len(read.variants) > 1 and read.config.seeds == (1, 2, 3)
    if any(getattr(variant.recipe, "init", None) for variant in read.variants):
        pytest.skip("requires trained runs")
    if read.variants[0].recipe.data.corpus in ("multi30k", "mnist") and data_folder() is None:
        pytest.skip("needs SEQLOOM_DATA")
    solved = ladder.solve(read)
    if solved.config.equal == "parameters":
        sizes, target = [variant.parameters or 0 for variant in solved.variants], solved.config.parameters or 0
        assert max(sizes) <= 1.01 * target and min(sizes) >= 0.99 * target
    assert len({variant.tokens for variant in solved.variants}) == 1


def test_ladder_over_cells_has_one_variant_per_cell() -> None:
    read = ladder.read_ladder("ladder-lm")
    assert [(variant.name, variant.recipe.model.cell) for variant in read.variants] == [(name, name) for name in CELLS]


def test_overrides_apply_to_all_variants_and_base_path_is_relative(write: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(dump_yaml(recipe_mapping("toys-copy")[1]), encoding="utf-8")
    read = ladder.read_ladder(write(base="mine.yaml"), ["train.lr=0.5"], seeds=[7], parameters=12_000)
    assert [variant.recipe.train.lr for variant in read.variants] == [0.5, 0.5]
    assert (read.config.seeds, read.config.parameters) == ((7,), 12_000)
    inline = ladder.read_ladder(write(base=recipe_mapping("toys-copy")[1]))
    assert inline.variants[1].recipe.model.cell == "gru"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"varants": {}}, ["varants", "did you mean", "variants"]),
        ({"base": "toys-cpy"}, ["toys-cpy", "did you mean toys-copy?"]),
        ({"variants": {"a": [], "b": ["model.cel=gru"]}}, ["variant b", "model.cel", "cell"]),
        ({"variants": {"a": [], "b": ["model.cell=gruu"]}}, ["variant b", "gruu"]),
        ({"variants": {"a": [], "b": ["model.cell"]}}, ["variant b", "must have the form key.path=value"]),
        ({"variants": {"a": [], "b": ["model.hidden=9"]}}, ["variant b", "model.hidden is adjusted"]),
        (
            {"variants": {"a": [], "b": ["model.hidden=9"]}, "size": {"recurrent-lm": "model.hidden"}},
            ["variant b", "model.hidden is adjusted"],
        ),
        ({"size": {}}, ["size", "kinds of models to keys"]),
        ({"variants": {"a": [], "b": ["seed=9"]}}, ["seed", "--seeds"]),
        ({"variants": {"a": [], "b": ["data.max_length=3"]}}, ["same task and data"]),
        ({"variants": {"../b": []}}, ["../b", "must consist of letters"]),
        ({"variants": {}}, ["at least one variant"]),
        ({"variants": "cell"}, ["cells"]),
        ({"variants": ["a"]}, ["variants"]),
        ({"seeds": [1, 1]}, ["seeds must be distinct integers"]),
        ({"equal": "flops"}, ["equal", "parameters"]),
        ({"parameters": 0}, ["parameters must be at least 1"]),
        ({"overrides": ["train.stps=3"]}, ["variant elman", "train.stps", "steps"]),
    ],
)
def test_errors_of_ladder_files_name_the_cause(write: Any, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        ladder.read_ladder(write(**changes))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.cell=gru"], "model.cell cannot be set for all variants"),
        (["model.hidden=9"], "set --parameters"),
        (["seed=9"], "--seeds"),
        (["train.lr=fast"], "variant elman"),
        (["model={kind: recurrent-lm}"], "model cannot be set for all variants"),
    ],
)
def test_common_overrides_of_varied_keys_are_rejected(write: Any, overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ladder.read_ladder(write(), overrides)


@pytest.mark.parametrize("source", ["ladder-ml", "no-such-thing", "gone.yaml"])
def test_missing_ladder_is_reported(source: str) -> None:
    with pytest.raises(UsageError, match=r"did you mean ladder-lm|list ladders|There is no ladder file"):
        ladder.read_ladder(source)


def test_documentation_lists_all_keys_with_their_defaults() -> None:
    page = (Path(__file__).parents[1] / "docs" / "explanations" / "ladder.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page.partition("## From Python")[0], re.MULTILINE))
    entries = {entry.name: entry.default for entry in dataclasses.fields(ladder.LadderConfig)}
    assert rows.keys() == entries.keys()
    for name, default in entries.items():
        documented = "required" if default is dataclasses.MISSING else to_mapping(default)
        assert parse_yaml(rows[name].strip("`"), name) == documented


# --- equal sizes, equal budget ----------------------------------------------------------------------------------------


@given(st.integers(1, 10_000_000), st.integers(1, 9), st.integers(0, 500))
def test_nearest_size_is_optimal(target: int, a: int, b: int) -> None:
    def count(n: int) -> int:
        return a * n * n + b * n + 3

    n, found = nearest_size(count, target)
    assert found == count(n)
    assert all(abs(found - target) <= abs(count(other) - target) for other in (max(1, n - 1), n + 1))


def test_sizes_are_equal_and_counted_on_trained_model(write: Any) -> None:
    solved = ladder.solve(ladder.read_ladder(write(variants="cells", parameters=24_500)))
    for variant in solved.variants:
        built = variant.recipe.model.build(11)  # the toy corpus has eleven tokens
        assert variant.parameters == sum(parameter.numel() for parameter in built.parameters())
        assert variant.parameters == pytest.approx(24_500, rel=0.01)
        assert variant.size == variant.recipe.model.hidden
    assert len({variant.size for variant in solved.variants}) > 2


def test_first_variant_is_default_target(write: Any) -> None:
    variants = {"first": ["model.cell=lstm", "model.hidden=48"], "other": ["model.cell=elman"]}
    solved = ladder.solve(ladder.read_ladder(write(variants=variants, parameters=None)))
    first, other = solved.variants
    assert (first.size, first.recipe.model.hidden) == (48, 48)
    assert first.parameters and other.parameters == pytest.approx(first.parameters, rel=0.01)
    free = ladder.solve(ladder.read_ladder(write(equal="nothing", parameters=None)))
    assert [variant.size for variant in free.variants] == [128, 128]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": 50}, "no value of model.hidden gives 50 parameters within 1 ?%"),
        ({"size": "model.d_model"}, "(?s)variant elman: .*model.d_model: is a key of kind gpt"),
        (
            {"size": {"transformer": "model.d_model"}},
            "variant elman: `size` has no key for models of kind recurrent-lm",
        ),
        ({"variants": {"a": [], "b": ["train.steps=9"]}}, "variant b would train on 288 tokens and variant a on 192"),
        ({"variants": {"a": [], "b": ["train.patience=1"]}}, "variant b: train.patience"),
        ({"base": "ngram-kn5", "overrides": [], "variants": {"a": []}}, "variant a: .*by gradient descent"),
        ({"variants": {"a": [], "b": ["model.dropout=1"]}}, "(?s)variant b: .*dropout"),
    ],
)
def test_unequal_variants_are_rejected_before_training(write: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ladder.solve(ladder.read_ladder(write(**changes)))


def test_budget_counts_tokens_not_steps(write: Any) -> None:
    variants = {"a": [], "b": ["batch.size=8", "train.steps=3", "train.evaluate_every=3"]}
    assert {variant.tokens for variant in ladder.solve(ladder.read_ladder(write(variants=variants))).variants} == {192}
    ladder.solve(ladder.read_ladder(write(variants={"a": [], "b": ["train.steps=9"]}, budget="free")))


# --- training ---------------------------------------------------------------------------------------------------------


def test_ladder_trains_ordinary_runs_and_ranks_variants(write: Any, tmp_path: Path) -> None:
    solved, out = ladder.solve(ladder.read_ladder(write())), tmp_path / "out"
    finished = [run for run, event in ladder.train_ladder(solved, out) if isinstance(event, Finished)]
    assert [(run.variant.name, run.seed) for run in finished] == [("elman", 1), ("gru", 1), ("elman", 2), ("gru", 2)]
    results = ladder.collect_results(solved, out)
    assert results.metric == "loss" and not results.higher_is_better
    assert [variant.mean for variant in results.variants] == sorted(variant.mean for variant in results.variants)
    for variant in results.variants:
        metrics = [load(out / f"{variant.name}-seed{seed}").run.metrics("dev") or {} for seed in (1, 2)]
        values = [entry["loss"] for entry in metrics]
        assert variant.values == values and values[0] != values[1]
        assert variant.mean == pytest.approx(sum(values) / 2)
        assert variant.deviation == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
        assert [run.tokens for run in variant.runs] == [192, 192]
        assert all(run.seconds == pytest.approx(192 / run.tokens_per_second) for run in variant.runs)
        assert variant.memory == max(run.memory or 0 for run in variant.runs) > 4 * 4 * (variant.parameters or 0)
    rows = list(csv.DictReader(io.StringIO(results.to_csv())))
    assert {(row["variant"], row["seed"], row["tokens"]) for row in rows} >= {("gru", "2", "192")} and len(rows) == 4
    tested = ladder.collect_results(solved, out, "test")
    assert load(out / "gru-seed1").run.metrics("test") is not None
    assert [variant.mean for variant in tested.variants] != [variant.mean for variant in results.variants]


def test_best_variant_is_listed_first(write: Any, tmp_path: Path) -> None:
    solved = ladder.solve(ladder.read_ladder(write(metric="perplexity", best="highest", seeds=[1])))
    list(ladder.train_ladder(solved, tmp_path / "out"))
    results = ladder.collect_results(solved, tmp_path / "out")
    assert results.higher_is_better and results.variants[0].mean > results.variants[1].mean
    assert math.isnan(results.variants[0].deviation)
    with pytest.raises(UsageError, match=r"no metric 'perplexty'.*did you mean perplexity"):
        ladder.collect_results(ladder.solve(ladder.read_ladder(write(metric="perplexty", seeds=[1]))), tmp_path / "out")


def test_resumed_ladder_has_same_weights(write: Any, tmp_path: Path) -> None:
    solved = ladder.solve(ladder.read_ladder(write()))
    list(ladder.train_ladder(solved, tmp_path / "whole"))
    stop, events = Stop(), []
    for run, event in ladder.train_ladder(solved, tmp_path / "parts", stop):
        events.append(event)
        if run.number == 3 and isinstance(event, Saved):
            stop.request()
    assert isinstance(events[-1], Stopped) and not (tmp_path / "parts" / "gru-seed2").exists()
    again = list(ladder.train_ladder(solved, tmp_path / "parts"))
    assert [run.number for run, event in again if event is None] == [1, 2]  # these runs are not trained again
    resumed = [event.resumed for run, event in again if isinstance(event, Started)]
    assert resumed == [True, False]
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert [event for _, event in ladder.train_ladder(solved, tmp_path / "parts")] == [None] * 4


def test_runs_of_another_ladder_are_rejected(write: Any, tmp_path: Path) -> None:
    list(ladder.train_ladder(ladder.solve(ladder.read_ladder(write())), tmp_path / "out"))
    other = ladder.solve(ladder.read_ladder(write(parameters=12_000, seeds=[3, 1])))
    with pytest.raises(SeqloomError, match=r"variant elman: .*model.hidden is \d+ in the run and \d+ now"):
        list(ladder.train_ladder(other, tmp_path / "out"))
    assert not (tmp_path / "out" / "elman-seed3").exists()  # all runs are checked before any training
    with pytest.raises(UsageError, match="is a run, not a ladder"):
        list(ladder.train_ladder(other, tmp_path / "out" / "gru-seed1"))


def test_other_variants_continue_after_divergence(write: Any, tmp_path: Path) -> None:
    wild = [
        "model.activation=relu",
        "train.lr=1.0e+30",
        "train.clip_norm=null",
        "train.max_nonfinite_steps=1",
        "train.schedule=constant",
    ]
    variants = {"wild": ["model.cell=elman", *wild], "tame": ["model.cell=gru"]}
    solved = ladder.solve(ladder.read_ladder(write(variants=variants, seeds=[1])))
    events = list(ladder.train_ladder(solved, tmp_path / "out"))
    assert [run.variant.name for run, event in events if isinstance(event, str)] == ["wild"]
    results = ladder.collect_results(solved, tmp_path / "out")
    assert [variant.name for variant in results.variants] == ["tame", "wild"]
    assert math.isnan(results.variants[1].mean) and math.isfinite(results.variants[0].mean)
