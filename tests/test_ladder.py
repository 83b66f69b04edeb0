"""Ladders: what they say, equal sizes, equal budgets, and what they come to."""

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
    """A ladder file; whatever is named differs from a tiny one that works."""

    def make(**changes: Any) -> Path:
        plain = {"base": "toys-copy", "overrides": [*TINY, *SHORT], "rungs": TWO, "parameters": 7250, "seeds": [1, 2]}
        path = tmp_path / "tiny.yaml"
        path.write_text(dump_yaml({**plain, **changes}), encoding="utf-8")
        return path

    return make


def weights(out: Path) -> dict[str, Any]:
    return {
        run.name: {name: tensor.tolist() for name, tensor in tensors_from_file(run / "model.safetensors").items()}
        for run in sorted(out.iterdir())
    }


# --- what they say --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("pretended_runs")
@pytest.mark.parametrize("name", ladder.ladder_names())
def test_every_shipped_ladder_can_be_climbed(name: str) -> None:
    read = ladder.read_ladder(name)
    assert len(read.rungs) > 1 and read.config.seeds == (1, 2, 3)
    if any(getattr(rung.recipe, "init", None) for rung in read.rungs):
        pytest.skip("begins with runs that must be trained first")
    if read.rungs[0].recipe.data.corpus == "multi30k" and data_folder() is None:
        pytest.skip("needs SEQLOOM_DATA")
    solved = ladder.solve(read)
    if solved.config.equal == "parameters":
        sizes, wanted = [rung.parameters or 0 for rung in solved.rungs], solved.config.parameters or 0
        assert max(sizes) <= 1.01 * wanted and min(sizes) >= 0.99 * wanted
    assert len({rung.tokens for rung in solved.rungs}) == 1


def test_a_rung_for_every_cell_there_is() -> None:
    read = ladder.read_ladder("ladder-lm")
    assert [rung.name for rung in read.rungs] == list(CELLS) == [rung.recipe.model.cell for rung in read.rungs]


def test_overrides_are_for_every_rung_and_the_file_is_named_from_its_folder(write: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(dump_yaml(recipe_mapping("toys-copy")[1]), encoding="utf-8")
    read = ladder.read_ladder(write(base="mine.yaml"), ["train.lr=0.5"], seeds=[7], parameters=12_000)
    assert [rung.recipe.train.lr for rung in read.rungs] == [0.5, 0.5]
    assert (read.config.seeds, read.config.parameters) == ((7,), 12_000)
    inline = ladder.read_ladder(write(base=recipe_mapping("toys-copy")[1]))
    assert inline.rungs[1].recipe.model.cell == "gru"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rugs": {}}, ["rugs", "did you mean", "rungs"]),
        ({"base": "toys-cpy"}, ["toys-cpy", "did you mean toys-copy?"]),
        ({"rungs": {"a": [], "b": ["model.cel=gru"]}}, ["rung b", "model.cel", "cell"]),
        ({"rungs": {"a": [], "b": ["model.cell=gruu"]}}, ["rung b", "gruu"]),
        ({"rungs": {"a": [], "b": ["model.cell"]}}, ["rung b", "must look like key.path=value"]),
        ({"rungs": {"a": [], "b": ["model.hidden=9"]}}, ["rung b", "model.hidden", "chosen"]),
        ({"rungs": {"a": [], "b": ["model.hidden=9"]}, "size": {"recurrent-lm": "model.hidden"}}, ["rung b", "chosen"]),
        ({"size": {}}, ["size", "kind of model"]),
        ({"rungs": {"a": [], "b": ["seed=9"]}}, ["seed", "--seeds"]),
        ({"rungs": {"a": [], "b": ["data.max_length=3"]}}, ["same task and data"]),
        ({"rungs": {"../b": []}}, ["../b", "becomes a folder"]),
        ({"rungs": {}}, ["at least one rung"]),
        ({"rungs": "cell"}, ["cells"]),
        ({"rungs": ["a"]}, ["rungs"]),
        ({"seeds": [1, 1]}, ["seeds", "differ"]),
        ({"equal": "flops"}, ["equal", "parameters"]),
        ({"parameters": 0}, ["parameters must be at least 1"]),
        ({"overrides": ["train.stps=3"]}, ["rung elman", "train.stps", "steps"]),
    ],
)
def test_what_is_wrong_is_named(write: Any, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        ladder.read_ladder(write(**changes))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.cell=gru"], "model.cell is what the rungs differ in"),
        (["model.hidden=9"], "set --parameters"),
        (["seed=9"], "--seeds"),
        (["train.lr=fast"], "rung elman"),
        (["model={kind: recurrent-lm}"], "model is what the rungs differ in"),
    ],
)
def test_overrides_that_cannot_be_for_all(write: Any, overrides: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ladder.read_ladder(write(), overrides)


@pytest.mark.parametrize("source", ["ladder-ml", "no-such-thing", "gone.yaml"])
def test_a_ladder_that_is_not_there(source: str) -> None:
    with pytest.raises(UsageError, match=r"did you mean ladder-lm|list ladders|There is no ladder file"):
        ladder.read_ladder(source)


def test_the_page_names_every_key_and_its_default() -> None:
    page = (Path(__file__).parents[1] / "docs" / "explanations" / "ladder.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page.partition("## From Python")[0], re.MULTILINE))
    entries = {entry.name: entry.default for entry in dataclasses.fields(ladder.LadderConfig)}
    assert rows.keys() == entries.keys()
    for name, default in entries.items():
        told = "required" if default is dataclasses.MISSING else to_mapping(default)
        assert parse_yaml(rows[name].strip("`"), name) == told


# --- equal sizes, equal budget --------------------------------------------------------------------------------------


@given(st.integers(1, 10_000_000), st.integers(1, 9), st.integers(0, 500))
def test_the_nearest_size_is_found(target: int, a: int, b: int) -> None:
    def count(n: int) -> int:
        return a * n * n + b * n + 3

    n, found = nearest_size(count, target)
    assert found == count(n)
    assert all(abs(found - target) <= abs(count(other) - target) for other in (max(1, n - 1), n + 1))


def test_sizes_are_equal_and_counted_on_the_model_that_is_trained(write: Any) -> None:
    solved = ladder.solve(ladder.read_ladder(write(rungs="cells", parameters=24_500)))
    for rung in solved.rungs:
        built = rung.recipe.model.build(11)  # the toys spell with eleven tokens
        assert rung.parameters == sum(parameter.numel() for parameter in built.parameters())
        assert rung.parameters == pytest.approx(24_500, rel=0.01)
        assert rung.size == rung.recipe.model.hidden
    assert len({rung.size for rung in solved.rungs}) > 2


def test_without_a_number_the_first_rung_is_the_measure(write: Any) -> None:
    rungs = {"first": ["model.cell=lstm", "model.hidden=48"], "other": ["model.cell=elman"]}
    solved = ladder.solve(ladder.read_ladder(write(rungs=rungs, parameters=None)))
    first, other = solved.rungs
    assert (first.size, first.recipe.model.hidden) == (48, 48)
    assert first.parameters and other.parameters == pytest.approx(first.parameters, rel=0.01)
    free = ladder.solve(ladder.read_ladder(write(equal="nothing", parameters=None)))
    assert [rung.size for rung in free.rungs] == [128, 128]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": 50}, "no model.hidden gives 50 parameters within 1 ?%"),
        ({"size": "model.d_model"}, "(?s)rung elman: .*model.d_model: is a key of kind gpt"),
        (
            {"size": {"transformer": "model.d_model"}},
            "rung elman: `size` names no key for a model of kind recurrent-lm",
        ),
        ({"rungs": {"a": [], "b": ["train.steps=9"]}}, "rung b would see 288 tokens and rung a 192"),
        ({"rungs": {"a": [], "b": ["train.patience=1"]}}, "rung b: train.patience"),
        ({"base": "ngram-kn5", "overrides": [], "rungs": {"a": []}}, "rung a: .*by gradient"),
        ({"rungs": {"a": [], "b": ["model.dropout=1"]}}, "(?s)rung b: .*dropout"),
    ],
)
def test_what_cannot_be_made_equal_is_refused_before_any_work(write: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ladder.solve(ladder.read_ladder(write(**changes)))


def test_as_many_tokens_in_other_batches_are_an_equal_budget(write: Any) -> None:
    rungs = {"a": [], "b": ["batch.size=8", "train.steps=3", "train.evaluate_every=3"]}
    assert {rung.tokens for rung in ladder.solve(ladder.read_ladder(write(rungs=rungs))).rungs} == {192}
    ladder.solve(ladder.read_ladder(write(rungs={"a": [], "b": ["train.steps=9"]}, budget="free")))


# --- climbing -------------------------------------------------------------------------------------------------------


def test_a_ladder_gives_ordinary_runs_and_a_table(write: Any, tmp_path: Path) -> None:
    solved, out = ladder.solve(ladder.read_ladder(write())), tmp_path / "out"
    ended = [(place.rung.name, place.seed) for place, event in ladder.climb(solved, out) if isinstance(event, Finished)]
    assert ended == [("elman", 1), ("gru", 1), ("elman", 2), ("gru", 2)]
    found = ladder.results(solved, out)
    assert found.metric == "loss" and not found.higher_is_better
    assert [rung.mean for rung in found.rungs] == sorted(rung.mean for rung in found.rungs)
    for rung in found.rungs:
        metrics = [load(out / f"{rung.name}-seed{seed}").run.metrics("dev") or {} for seed in (1, 2)]
        values = [one["loss"] for one in metrics]
        assert rung.values == values and values[0] != values[1]
        assert rung.mean == pytest.approx(sum(values) / 2)
        assert rung.deviation == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
        assert [run.tokens for run in rung.runs] == [192, 192]
        assert all(run.seconds == pytest.approx(192 / run.tokens_per_second) for run in rung.runs)
        assert rung.memory == max(run.memory or 0 for run in rung.runs) > 4 * 4 * (rung.parameters or 0)
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert {(row["rung"], row["seed"], row["tokens"]) for row in rows} >= {("gru", "2", "192")} and len(rows) == 4
    tested = ladder.results(solved, out, "test")
    assert load(out / "gru-seed1").run.metrics("test") is not None
    assert [rung.mean for rung in tested.rungs] != [rung.mean for rung in found.rungs]


def test_the_better_is_first_whichever_way_is_better(write: Any, tmp_path: Path) -> None:
    solved = ladder.solve(ladder.read_ladder(write(metric="perplexity", best="highest", seeds=[1])))
    list(ladder.climb(solved, tmp_path / "out"))
    found = ladder.results(solved, tmp_path / "out")
    assert found.higher_is_better and found.rungs[0].mean > found.rungs[1].mean
    assert math.isnan(found.rungs[0].deviation)
    with pytest.raises(UsageError, match=r"no metric 'perplexty'.*did you mean perplexity"):
        ladder.results(ladder.solve(ladder.read_ladder(write(metric="perplexty", seeds=[1]))), tmp_path / "out")


def test_a_ladder_stopped_half_way_goes_on_to_the_same_weights(write: Any, tmp_path: Path) -> None:
    solved = ladder.solve(ladder.read_ladder(write()))
    list(ladder.climb(solved, tmp_path / "whole"))
    stop, events = Stop(), []
    for place, event in ladder.climb(solved, tmp_path / "parts", stop):
        events.append(event)
        if place.number == 3 and isinstance(event, Saved):
            stop.request()
    assert isinstance(events[-1], Stopped) and not (tmp_path / "parts" / "gru-seed2").exists()
    again = list(ladder.climb(solved, tmp_path / "parts"))
    assert [place.number for place, event in again if event is None] == [1, 2]  # not trained again
    resumed = [event.resumed for place, event in again if isinstance(event, Started)]
    assert resumed == [True, False]
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert [event for _, event in ladder.climb(solved, tmp_path / "parts")] == [None] * 4


def test_another_ladder_does_not_pass_for_this_one(write: Any, tmp_path: Path) -> None:
    list(ladder.climb(ladder.solve(ladder.read_ladder(write())), tmp_path / "out"))
    other = ladder.solve(ladder.read_ladder(write(parameters=12_000, seeds=[3, 1])))
    with pytest.raises(SeqloomError, match=r"rung elman: .*model.hidden is \d+ in the run and \d+ now"):
        list(ladder.climb(other, tmp_path / "out"))
    assert not (tmp_path / "out" / "elman-seed3").exists()  # all are looked at before any is trained
    with pytest.raises(UsageError, match="is a run, not a ladder"):
        list(ladder.climb(other, tmp_path / "out" / "gru-seed1"))


def test_a_rung_that_diverges_does_not_end_the_ladder(write: Any, tmp_path: Path) -> None:
    wild = [
        "model.activation=relu",
        "train.lr=1.0e+30",
        "train.clip_norm=null",
        "train.max_nonfinite_steps=1",
        "train.schedule=constant",
    ]
    rungs = {"wild": ["model.cell=elman", *wild], "tame": ["model.cell=gru"]}
    solved = ladder.solve(ladder.read_ladder(write(rungs=rungs, seeds=[1])))
    events = list(ladder.climb(solved, tmp_path / "out"))
    assert [place.rung.name for place, event in events if isinstance(event, str)] == ["wild"]
    found = ladder.results(solved, tmp_path / "out")
    assert [rung.name for rung in found.rungs] == ["tame", "wild"]
    assert math.isnan(found.rungs[1].mean) and math.isfinite(found.rungs[0].mean)
