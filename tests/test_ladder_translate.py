"""Ladders of translators: several kinds of models, the whole of dev, several runs at once."""

import json
import queue
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("babel", reason="the extra `corpora` is not installed")

from seqloom import ladder
from seqloom.config.yaml_text import dump_yaml
from seqloom.core.errors import DataError, ResourceError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.ladder import workers
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.train.events import Finished, Progress, Saved, Stopped
from seqloom.train.stop import Stop

TINY = ["data.kinds=[time, duration]", "data.train=80", "data.dev=24", "data.test=8", "tokenizer.size=300"]
SHORT = ["batch.tokens=64", "batch.dev_pairs=4", "train.epochs=null", "train.steps=6", "train.evaluate_every=3"]
BLOCKS = ["model.d_model=16", "model.heads=2", "model.encoder_layers=1", "model.decoder_layers=1"]
RUNGS = {"gru": [], "fixed": ["model.attention=null"], "transformer": ["model.kind=transformer", *BLOCKS]}
TOYS = ["data.train=60", "data.dev=10", "data.test=10", "batch.size=4", "batch.length=8", "model.embedding=16"]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def make(**changes: Any) -> Path:
        size = {"recurrent-seq2seq": "model.hidden", "transformer": "model.d_ff"}
        plain: dict[str, Any] = {
            "base": "translate-cldr",
            "overrides": [*TINY, *SHORT, "model.dropout=0.3"],
            "rungs": RUNGS,
        }
        plain |= {"parameters": 150_000, "size": size, "metric": "bleu", "also": ["loss"], "seeds": [1]}
        path = tmp_path / "tiny.yaml"
        path.write_text(dump_yaml({**plain, **changes}), encoding="utf-8")
        return path

    return make


@pytest.fixture
def toys(tmp_path: Path) -> ladder.Ladder:
    """Two runs that begin fast."""
    steps = ["train.epochs=null", "train.steps=20", "train.evaluate_every=5", "train.log_every=1"]
    rungs = {"elman": ["model.cell=elman"], "gru": ["model.cell=gru"]}
    content = {"base": "toys-copy", "overrides": [*TOYS, *steps], "rungs": rungs, "parameters": 7250, "seeds": [1]}
    (tmp_path / "toys.yaml").write_text(dump_yaml(content), encoding="utf-8")
    return ladder.solve(ladder.read_ladder(tmp_path / "toys.yaml"))


def weights(out: Path) -> dict[str, Any]:
    return {
        run.name: {name: tensor.tolist() for name, tensor in tensors_from_file(run / "model.safetensors").items()}
        for run in sorted(out.iterdir())
    }


# --- several kinds of models ----------------------------------------------------------------------------------------


def test_another_kind_begins_its_section_afresh_and_is_as_large(write: Any) -> None:
    gru, fixed, transformer = ladder.solve(ladder.read_ladder(write())).rungs
    assert (gru.recipe.model.dropout, fixed.recipe.model.dropout) == (0.3, 0.3)
    assert transformer.recipe.model.dropout == type(transformer.recipe.model)().dropout  # not what GRUs are told
    assert fixed.recipe.model.attention is None
    assert (gru.size_key, transformer.size_key) == ("model.hidden", "model.d_ff")
    assert transformer.size == transformer.recipe.model.d_ff
    for rung in (gru, fixed, transformer):
        assert rung.parameters == pytest.approx(150_000, rel=0.01)
    for rung in ladder.read_ladder(write(), ["model.dropout=0.2", "train.lr=0.1"]).rungs:
        assert (rung.recipe.model.dropout, rung.recipe.train.lr) == (0.2, 0.1)  # whoever asks means all of them


def test_nothing_turns_on_what_a_rung_turns_off(write: Any) -> None:
    with pytest.raises(UsageError, match=r"model.attention.score is what the rungs differ in"):
        ladder.read_ladder(write(), ["model.attention.score=dot"])


def test_what_one_model_cannot_read_is_said_before_any_work(write: Any) -> None:
    short = ["model.attention={order: luong, score: location, max_length: 3}"]
    read = ladder.read_ladder(write(rungs={**RUNGS, "near": short}, equal="nothing"))
    with pytest.raises(DataError, match=r"rung near: .*model.attention.max_length"):
        ladder.solve(read)


def test_without_a_metric_the_recipe_says_what_is_best(write: Any) -> None:
    read = ladder.read_ladder(write(metric=None))
    assert (read.metric, read.higher_is_better) == ("loss", False)
    read = ladder.read_ladder(write(metric=None, overrides=[*TINY, *SHORT, "monitor=chrf"]))
    assert (read.metric, read.higher_is_better) == ("chrf", True)


# --- figures --------------------------------------------------------------------------------------------------------


def test_all_of_dev_is_translated_as_the_recipe_says(write: Any, tmp_path: Path) -> None:
    solved, out = ladder.solve(ladder.read_ladder(write(rungs={"gru": [], "fixed": RUNGS["fixed"]}))), tmp_path / "out"
    ends = {place.rung.name: event for place, event in ladder.climb(solved, out) if isinstance(event, Finished)}
    found = ladder.results(solved, out)
    assert {rung.size_key for rung in found.rungs} == {"model.hidden"} and found.size == "model.hidden"
    for rung in found.rungs:
        own = load(out / f"{rung.name}-seed1")
        kept = own.run.metrics("dev") or {}
        assert kept["decoding"].startswith("beam search, 5") and "step" not in kept
        assert rung.mean == kept["bleu"] == ends[rung.name].best["bleu"] == own.evaluate("dev")["bleu"]
        assert rung.spread("loss")[0] == kept["loss"]
    # stopped between its last step and its figures: what training had glanced at does not count
    glance = {"step": 6, "loss": 1.0, "bleu": 99.0}
    Run.open(out / "gru-seed1").save_metrics("dev", glance)
    assert [event for _, event in ladder.climb(solved, out)] == [None, None]
    assert ladder.results(solved, out) == found


# --- several at once ------------------------------------------------------------------------------------------------


def test_runs_made_at_once_are_those_made_in_turn(toys: ladder.Ladder, tmp_path: Path) -> None:
    list(ladder.climb(toys, tmp_path / "turn"))
    events = list(ladder.climb(toys, tmp_path / "once", jobs=2, splits=("dev", "test")))
    assert weights(tmp_path / "once") == weights(tmp_path / "turn")
    ends = {place.rung.name: event for place, event in events if isinstance(event, Finished)}
    assert {place.rung.name for place, event in events if isinstance(event, Progress)} == {"elman", "gru"}
    one, other = ladder.results(toys, tmp_path / "turn"), ladder.results(toys, tmp_path / "once")
    assert [rung.values for rung in one.rungs] == [rung.values for rung in other.rungs]
    assert [rung.memory for rung in one.rungs] == [rung.memory for rung in other.rungs]
    assert {rung.name: rung.mean for rung in other.rungs} == {name: end.best["loss"] for name, end in ends.items()}
    assert (tmp_path / "once" / "gru-seed1" / "metrics" / "test.json").exists()
    assert {(run.jobs, run.threads) for rung in other.rungs for run in rung.runs} == {(2, 1)}
    assert {run.jobs for rung in one.rungs for run in rung.runs} == {1}
    assert ",jobs,threads," in other.to_csv() and '"jobs": 2' in json.dumps(other.to_json())
    again = list(ladder.climb(toys, tmp_path / "once", jobs=2))
    assert [(place.rung.name, event) for place, event in again] == [("elman", None), ("gru", None)]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_finished_run_whose_recipe_grew_is_trained_on(toys: ladder.Ladder, tmp_path: Path, jobs: int) -> None:
    def steps(number: int) -> ladder.Ladder:
        grown = [with_steps(r.recipe, number) for r in toys.rungs]
        grown = [replace(recipe, train=replace(recipe.train, schedule="constant")) for recipe in grown]
        return replace(toys, rungs=tuple(replace(r, recipe=g) for r, g in zip(toys.rungs, grown, strict=True)))

    list(ladder.climb(steps(2), tmp_path / "out"))
    ends = [event for _, event in ladder.climb(steps(4), tmp_path / "out", jobs=jobs) if isinstance(event, Finished)]
    assert [end.step for end in ends] == [4, 4]


def test_a_request_to_stop_reaches_all_of_them(toys: ladder.Ladder, tmp_path: Path) -> None:
    long = replace(toys, rungs=tuple(replace(r, recipe=with_steps(r.recipe, 100_000)) for r in toys.rungs))
    stop, seen = Stop(), list[tuple[str, Any]]()
    for place, event in ladder.climb(long, tmp_path / "out", stop, jobs=2):
        seen.append((place.rung.name, event))
        if {name for name, event in seen if isinstance(event, Saved)} == {"elman", "gru"}:
            stop.request()
    assert isinstance(seen[-1][1], Stopped)
    assert sum(isinstance(event, Stopped) for _, event in seen) == 1
    for name in ("elman", "gru"):
        run = Run.open(tmp_path / "out" / f"{name}-seed1")
        *_, last = run.log()
        assert last["event"] == "stopped" and last["step"] < 100_000  # both saved what they had
        with run.locked():  # and are gone
            pass


def with_steps(recipe: Any, steps: int) -> Any:
    return replace(recipe, train=replace(recipe.train, steps=steps))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Workers that run a few lines instead."""

    def use(lines: str) -> None:
        script = tmp_path / "worker.py"
        script.write_text(lines, encoding="utf-8")
        plain = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", lambda words, **more: plain([words[0], str(script)], **more))

    return use


FAILED = """
import json, sys
order = json.loads(sys.stdin.readline())
if "gru" in order["path"]:
    print(json.dumps({"event": "failed", "kind": "DataError", "message": "there is no such file"}), flush=True)
else:
    sys.stdin.read()  # until it is told to stop
"""


HALF = """
import os
os.write(1, b'{"event": "prog')
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        (FAILED, DataError, "rung gru: there is no such file"),
        ("raise RuntimeError('no luck')", ResourceError, "rung .*: the process of .* ended: RuntimeError: no luck"),
        ("import os; os.kill(os.getpid(), 9)", ResourceError, "rung .*: the process of .* ended: signal 9"),
        (HALF, ResourceError, "rung .*: the process of .* ended: signal 9, in the middle of a line: '{\"event"),
        ("print('hello', flush=True); input(); input()", ResourceError, "in the middle of a line: 'hello'"),
    ],
)
def test_a_run_that_fails_ends_the_ladder_with_its_words(
    toys: ladder.Ladder, tmp_path: Path, scripted: Any, lines: str, kind: type[Exception], words: str
) -> None:
    scripted(lines)
    with pytest.raises(kind, match=words):
        list(ladder.climb(toys, tmp_path / "out", jobs=2))


def test_a_worker_whose_parent_is_gone_saves_and_leaves(toys: ladder.Ladder, tmp_path: Path) -> None:
    place = ladder.ladder_runs(toys, tmp_path / "out")[0]
    rung = replace(place.rung, recipe=with_steps(place.rung.recipe, 100_000))
    said: queue.Queue[Any] = queue.Queue()
    worker = workers.Worker(replace(place, rung=rung), ("dev",), 1, said)
    while said.get(timeout=60)[1]["event"] != "saved":
        pass
    assert worker.process.stdin is not None
    worker.process.stdin.close()  # as the system does when the parent ends
    assert worker.process.wait(timeout=60) == 0
    lines = [json.loads(line) for line in (place.path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["event"] == "stopped"
    worker.end()
