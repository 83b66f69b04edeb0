import json
import math
from pathlib import Path
from typing import Any

import pytest

from seqloom.data.corpus import TextCounts
from seqloom.data.files import read_lines
from seqloom.predict.evaluation import MetricsEvaluation
from seqloom.predict.language_model import LanguageModelPredictor
from seqloom.predict.loader import load

METRICS = ("loss", "perplexity", "word_perplexity", "bits_per_character", "bits_per_byte")


def best_in_log(run: Path) -> dict[str, Any]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    (*_, last) = [entry["metrics"] for entry in entries if entry["event"] == "evaluated" and entry["best"]]
    return dict(last)


@pytest.mark.parametrize("name", ["chars", "gru", "pairs", "words", "grams", "toys"])
def test_dev_metrics_match_those_of_the_training_log(seqloom: Any, copy: Any, name: str) -> None:
    run = copy(name)
    result = seqloom("evaluate", run, "--json").json
    logged = best_in_log(run)
    assert {metric: result[metric] for metric in logged} == logged
    assert set(METRICS) <= logged.keys()


@pytest.mark.parametrize("name", ["chars", "words", "grams"])
def test_test_metrics_match_the_python_api_and_are_saved(seqloom: Any, copy: Any, texts: Path, name: str) -> None:
    run = copy(name)
    result = seqloom("evaluate", run, "--split", "test", "--json").json
    expected = load(run).evaluate("test")
    assert {metric: result[metric] for metric in expected} == expected
    assert json.loads((run / "metrics/test.json").read_text()) == expected
    counts = TextCounts.of(read_lines(texts / "test.txt"))
    assert {unit: result[unit] for unit in vars(counts)} == vars(counts)
    assert result["run"] == str(run)
    assert result["data"] == "text, test"


def test_metrics_divide_one_total_by_different_counts(seqloom: Any, copy: Any) -> None:
    result = seqloom("evaluate", copy("words"), "--split=test", "--json").json
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))
    total = result["bits_per_character"] * result["characters"] * math.log(2)
    assert result["bits_per_byte"] * result["bytes"] * math.log(2) == pytest.approx(total)
    assert math.log(result["word_perplexity"]) * result["words"] == pytest.approx(total)


def test_text_output_shows_the_metrics_of_the_json_output(seqloom: Any, copy: Any) -> None:
    run = copy("chars")
    shown = seqloom("evaluate", run)
    result = seqloom("evaluate", run, "--json").json
    assert shown.code == 0 and shown.err == ""
    first, *rest = shown.out.splitlines()
    assert first.startswith(f"{run} on text, dev: {result['words']:,} words, {result['characters']:,} characters")
    assert [line.split()[-1] for line in rest][:5] == [f"{result[metric]:.4f}" for metric in METRICS]
    assert rest[0].split()[:-1] == ["loss,", "nats", "per", "token"]


@pytest.mark.parametrize("name", ["chars", "words", "grams"])
def test_text_of_a_split_has_the_same_metrics_as_the_split(seqloom: Any, copy: Any, texts: Path, name: str) -> None:
    run = copy(name)
    split = seqloom("evaluate", run, "--split=test", "--json").json
    other = seqloom("evaluate", run, texts / "test.txt", "--json").json
    assert other.pop("data") == str(texts / "test.txt")
    split.pop("data")
    assert other == split
    assert not (run / "metrics" / "other.json").exists()


def test_document_unit_sets_number_of_end_tokens(seqloom: Any, copy: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat here .\nthe dog sat here .\n\nthe owl slept .\n")
    run = copy("chars")
    result = [
        seqloom("evaluate", run, text, "--documents", kind, "--json").json["documents"]
        for kind in ("file", "line", "paragraph")
    ]
    assert result == [1, 3, 2]


def test_infinite_perplexity_is_null_in_json(seqloom: Any, copy: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("x" * 2000)
    run = copy("chars")
    assert seqloom("evaluate", run, text, "--json").json["word_perplexity"] is None
    assert "perplexity per word    inf" in seqloom("evaluate", run, text).out


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, ["does not exist"]), (b"", ["is empty"]), (b" \n\n", ["is empty"]), (b"a\0\0\0\xff\n", ["binary file"])],
)
def test_invalid_text_is_rejected(
    seqloom: Any, runs: Path, tmp_path: Path, content: bytes | None, words: list[str]
) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    seqloom("evaluate", runs / "chars", text).fails_with(3, str(text), *words, lines=1)


def test_error_for_an_unknown_split_has_a_suggestion(seqloom: Any, runs: Path) -> None:
    seqloom("evaluate", runs / "chars", "--split", "tset").fails_with(2, "'tset'", "did you mean test?", lines=1)
    seqloom("evaluate", runs / "chars", "--split", "../data").fails_with(2, "train, dev, test", lines=1)


def test_split_and_text_exclude_each_other(seqloom: Any, runs: Path, texts: Path) -> None:
    seqloom("evaluate", runs / "chars", "--split=dev", texts / "dev.txt").fails_with(
        2, "cannot be used together", lines=1
    )
    seqloom("evaluate", runs / "chars", "--documents=line").fails_with(2, "--documents requires a text file", lines=1)
    seqloom("evaluate", runs / "chars", texts, "--documents=word").fails_with(2, "--documents", "'word'")


def test_error_for_an_absent_split_states_the_reason(seqloom: Any, tmp_path: Path, texts: Path) -> None:
    folder = tmp_path / "data"
    (folder / "tinyshakespeare").mkdir(parents=True)
    (folder / "tinyshakespeare/input.txt").write_bytes((texts / "train.txt").read_bytes())
    small = ["batch.size=2", "batch.length=16", "model.hidden=4", "model.layers=1", "train.steps=1", "train.device=cpu"]
    words = ["lm-shakespeare-lstm", *small, "train.precision=fp32", "--out", tmp_path / "run", "--data-dir", folder]
    trained = seqloom("train", *words)
    assert trained.code == 0, trained.err
    assert trained.out.endswith("--split dev\n")  # without a hint that does not help
    assert seqloom("evaluate", tmp_path / "run", "--data-dir", folder).code == 0
    seqloom("evaluate", tmp_path / "run", "--split=test", "--data-dir", folder).fails_with(
        3, "has no test split", "the last 10 % of the text is dev", lines=1
    )


def test_changed_or_missing_data_is_rejected(
    seqloom: Any, tmp_path: Path, texts: Path, text_overrides: list[str]
) -> None:
    text = tmp_path / "dev.txt"
    text.write_bytes((texts / "dev.txt").read_bytes())
    words = ["ngram-kn5", *text_overrides, f"data.dev={text}", "model.order=2", "--out", tmp_path / "run"]
    assert seqloom("train", *words).code == 0
    text.write_text("another text .\n")
    changed = seqloom("evaluate", tmp_path / "run", "--split=dev")
    changed.fails_with(
        3, "has changed since it was trained: dev", "Name a copy of the old data with --data PATH", lines=1
    )
    assert seqloom("evaluate", tmp_path / "run", text).code == 0
    text.unlink()
    seqloom("evaluate", tmp_path / "run", "--split=dev").fails_with(3, str(text), "does not exist", lines=1)


class ShortEvaluation(MetricsEvaluation):
    """An evaluation outside the command line."""

    option_groups = ("out",)

    def lines(self, console: Any) -> Any:
        yield f"perplexity {self.metrics['perplexity']:.1f}"

    def answers(self) -> list[str]:
        return ["one\n", "two\n"]


def test_evaluation_class_of_the_predictor_is_used(seqloom: Any, runs: Path, tmp_path: Path, monkeypatch: Any) -> None:
    plain = seqloom("evaluate", runs / "chars", "--json").json
    seqloom("evaluate", runs / "chars", "--out", tmp_path / "x").fails_with(2, "--out require a translator")
    monkeypatch.setattr(LanguageModelPredictor, "evaluation_class", ShortEvaluation)
    shown = seqloom("evaluate", runs / "chars", "--out", tmp_path / "x")
    assert shown.out == f"perplexity {plain['perplexity']:.1f}\n"
    assert (tmp_path / "x").read_text() == "one\ntwo\n"
    assert seqloom("evaluate", runs / "chars", "--json").json == plain
