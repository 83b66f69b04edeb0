"""Ladders of translation models: several kinds of models, evaluation on all of dev, and parallel runs."""

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
VARIANTS = {"gru": [], "fixed": ["model.attention=null"], "transformer": ["model.kind=transformer", *BLOCKS]}
TOYS = ["data.train=60", "data.dev=10", "data.test=10", "batch.size=4", "batch.length=8", "model.embedding=16"]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def make(**changes: Any) -> Path:
        size = {"recurrent-seq2seq": "model.hidden", "transformer": "model.d_ff"}
        plain: dict[str, Any] = {
            "base": "translate-cldr",
            "overrides": [*TINY, *SHORT, "model.dropout=0.3"],
            "variants": VARIANTS,
        }
        plain |= {"parameters": 150_000, "size": size, "metric": "bleu", "also": ["loss"], "seeds": [1]}
        path = tmp_path / "tiny.yaml"
        path.write_text(dump_yaml({**plain, **changes}), encoding="utf-8")
        return path

    return make


@pytest.fixture
def toys(tmp_path: Path) -> ladder.Ladder:
    """A ladder with two runs that start quickly."""
    steps = ["train.epochs=null", "train.steps=20", "train.evaluate_every=5", "train.log_every=1"]
    variants = {"elman": ["model.cell=elman"], "gru": ["model.cell=gru"]}
    content: dict[str, Any] = {"base": "toys-copy", "overrides": [*TOYS, *steps], "variants": variants}
    content |= {"parameters": 7250, "seeds": [1]}
    (tmp_path / "toys.yaml").write_text(dump_yaml(content), encoding="utf-8")
    return ladder.solve(ladder.read_ladder(tmp_path / "toys.yaml"))


def weights(out: Path) -> dict[str, Any]:
    return {
        run.name: {name: tensor.tolist() for name, tensor in tensors_from_file(run / "model.safetensors").items()}
        for run in sorted(out.iterdir())
    }


# --- several kinds of models ------------------------------------------------------------------------------------------


def test_other_kind_of_model_starts_with_an_empty_section_and_equal_size(write: Any) -> None:
    gru, fixed, transformer = ladder.solve(ladder.read_ladder(write())).variants
    assert (gru.recipe.model.dropout, fixed.recipe.model.dropout) == (0.3, 0.3)
    # Not the value of the GRU variants
    assert transformer.recipe.model.dropout == type(transformer.recipe.model)().dropout
    assert fixed.recipe.model.attention is None
    assert (gru.size_key, transformer.size_key) == ("model.hidden", "model.d_ff")
    assert transformer.size == transformer.recipe.model.d_ff
    for variant in (gru, fixed, transformer):
        assert variant.parameters == pytest.approx(150_000, rel=0.01)
    for variant in ladder.read_ladder(write(), ["model.dropout=0.2", "train.lr=0.1"]).variants:
        assert (variant.recipe.model.dropout, variant.recipe.train.lr) == (0.2, 0.1)  # overrides apply to all variants


def test_override_inside_varied_section_is_rejected(write: Any) -> None:
    with pytest.raises(UsageError, match=r"model.attention.score cannot be set for all variants"):
        ladder.read_ladder(write(), ["model.attention.score=dot"])


def test_data_that_one_variant_cannot_read_is_reported_before_training(write: Any) -> None:
    short = ["model.attention={order: luong, score: location, max_length: 3}"]
    read = ladder.read_ladder(write(variants={**VARIANTS, "near": short}, equal="nothing"))
    with pytest.raises(DataError, match=r"variant near: .*model.attention.max_length"):
        ladder.solve(read)


def test_recipe_defines_default_metric(write: Any) -> None:
    read = ladder.read_ladder(write(metric=None))
    assert (read.metric, read.higher_is_better) == ("loss", False)
    read = ladder.read_ladder(write(metric=None, overrides=[*TINY, *SHORT, "monitor=chrf"]))
    assert (read.metric, read.higher_is_better) == ("chrf", True)


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_results_use_complete_dev_split_and_decode_section(write: Any, tmp_path: Path) -> None:
    variants, out = {name: VARIANTS[name] for name in ("gru", "fixed")}, tmp_path / "out"
    solved = ladder.solve(ladder.read_ladder(write(variants=variants)))
    ends = {run.variant.name: event for run, event in ladder.train_ladder(solved, out) if isinstance(event, Finished)}
    results = ladder.collect_results(solved, out)
    assert {variant.size_key for variant in results.variants} == {"model.hidden"} and results.size == "model.hidden"
    for variant in results.variants:
        predictor = load(out / f"{variant.name}-seed1")
        stored = predictor.run.metrics("dev") or {}
        assert stored["decoding"].startswith("beam search, 5") and "step" not in stored
        assert variant.mean == stored["bleu"] == ends[variant.name].best["bleu"] == predictor.evaluate("dev")["bleu"]
        assert variant.spread("loss")[0] == stored["loss"]
    # Stopped between its last step and its evaluation. The metrics of validation during training are not used.
    Run.open(out / "gru-seed1").save_metrics("dev", {"step": 6, "loss": 1.0, "bleu": 99.0})
    assert [event for _, event in ladder.train_ladder(solved, out)] == [None, None]
    assert ladder.collect_results(solved, out) == results


# --- parallel runs ----------------------------------------------------------------------------------------------------


def test_parallel_runs_give_the_same_results_as_sequential_runs(toys: ladder.Ladder, tmp_path: Path) -> None:
    list(ladder.train_ladder(toys, tmp_path / "sequential"))
    events = list(ladder.train_ladder(toys, tmp_path / "parallel", jobs=2, splits=("dev", "test")))
    assert weights(tmp_path / "parallel") == weights(tmp_path / "sequential")
    ends = {run.variant.name: event for run, event in events if isinstance(event, Finished)}
    assert {run.variant.name for run, event in events if isinstance(event, Progress)} == {"elman", "gru"}
    sequential = ladder.collect_results(toys, tmp_path / "sequential")
    parallel = ladder.collect_results(toys, tmp_path / "parallel")
    assert [variant.values for variant in sequential.variants] == [variant.values for variant in parallel.variants]
    assert [variant.memory for variant in sequential.variants] == [variant.memory for variant in parallel.variants]
    means = {variant.name: variant.mean for variant in parallel.variants}
    assert means == {name: end.best["loss"] for name, end in ends.items()}
    assert (tmp_path / "parallel" / "gru-seed1" / "metrics" / "test.json").exists()
    assert {(run.jobs, run.threads) for variant in parallel.variants for run in variant.runs} == {(2, 1)}
    assert {run.jobs for variant in sequential.variants for run in variant.runs} == {1}
    assert ",jobs,threads," in parallel.to_csv() and '"jobs": 2' in json.dumps(parallel.to_json())
    again = list(ladder.train_ladder(toys, tmp_path / "parallel", jobs=2))
    assert [(run.variant.name, event) for run, event in again] == [("elman", None), ("gru", None)]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_finished_run_continues_with_more_steps(toys: ladder.Ladder, tmp_path: Path, jobs: int) -> None:
    def steps(number: int) -> ladder.Ladder:
        grown = [with_steps(r.recipe, number) for r in toys.variants]
        grown = [replace(recipe, train=replace(recipe.train, schedule="constant")) for recipe in grown]
        return replace(toys, variants=tuple(replace(r, recipe=g) for r, g in zip(toys.variants, grown, strict=True)))

    list(ladder.train_ladder(steps(2), tmp_path / "out"))
    events = [event for _, event in ladder.train_ladder(steps(4), tmp_path / "out", jobs=jobs)]
    assert [event.step for event in events if isinstance(event, Finished)] == [4, 4]


def test_stop_request_reaches_all_workers(toys: ladder.Ladder, tmp_path: Path) -> None:
    long = replace(toys, variants=tuple(replace(r, recipe=with_steps(r.recipe, 100_000)) for r in toys.variants))
    stop, seen = Stop(), list[tuple[str, Any]]()
    for run, event in ladder.train_ladder(long, tmp_path / "out", stop, jobs=2):
        seen.append((run.variant.name, event))
        if {name for name, event in seen if isinstance(event, Saved)} == {"elman", "gru"}:
            stop.request()
    assert isinstance(seen[-1][1], Stopped)
    assert sum(isinstance(event, Stopped) for _, event in seen) == 1
    for name in ("elman", "gru"):
        stopped = Run.open(tmp_path / "out" / f"{name}-seed1")
        *_, last = stopped.log()
        assert last["event"] == "stopped" and last["step"] < 100_000  # both runs saved their state
        with stopped.locked():  # the processes have ended
            pass


def with_steps(recipe: Any, steps: int) -> Any:
    return replace(recipe, train=replace(recipe.train, steps=steps))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that replaces the worker by a script."""

    def use(lines: str) -> None:
        script = tmp_path / "worker.py"
        script.write_text(lines, encoding="utf-8")
        plain = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", lambda words, **more: plain([words[0], str(script)], **more))

    return use


FAILED = """
import json, sys
job = json.loads(sys.stdin.readline())
if "gru" in job["path"]:
    print(json.dumps({"event": "failed", "kind": "DataError", "message": "there is no such file"}), flush=True)
else:
    sys.stdin.read()  # until it is terminated
"""


HALF = """
import os
os.write(1, b'{"event": "prog')
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        (FAILED, DataError, "variant gru: there is no such file"),
        ("raise RuntimeError('no luck')", ResourceError, "variant .*: the process of .* failed: RuntimeError: no luck"),
        ("import os; os.kill(os.getpid(), 9)", ResourceError, "variant .*: the process of .* failed: signal 9"),
        (HALF, ResourceError, "variant .*: the process of .* failed: signal 9, in the middle of a line: '{\"event"),
        ("print('hello', flush=True); input(); input()", ResourceError, "in the middle of a line: 'hello'"),
    ],
)
def test_message_of_a_failed_worker_ends_the_ladder(
    toys: ladder.Ladder, tmp_path: Path, scripted: Any, lines: str, kind: type[Exception], words: str
) -> None:
    scripted(lines)
    with pytest.raises(kind, match=words):
        list(ladder.train_ladder(toys, tmp_path / "out", jobs=2))


def test_worker_saves_and_exits_if_its_parent_has_exited(toys: ladder.Ladder, tmp_path: Path) -> None:
    run = ladder.list_runs(toys, tmp_path / "out")[0]
    variant = replace(run.variant, recipe=with_steps(run.variant.recipe, 100_000))
    messages: queue.Queue[Any] = queue.Queue()
    worker = workers.Worker(replace(run, variant=variant), ("dev",), 1, messages)
    while messages.get(timeout=60)[1]["event"] != "saved":
        pass
    assert worker.process.stdin is not None
    worker.process.stdin.close()  # the system also closes the input when the parent ends
    assert worker.process.wait(timeout=60) == 0
    lines = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["event"] == "stopped"
    worker.end()
