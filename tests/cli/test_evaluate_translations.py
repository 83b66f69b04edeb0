"""Tests of `seqloom evaluate` with translators."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tests.checksums import update_checksums

from seqloom.cli.app import main
from seqloom.data.examples import ParallelExample
from seqloom.predict.loader import load

WHO = {"cat": "Katze", "dog": "Hund", "owl": "Eule", "fox": "Fuchs"}
DID = {"sat": "sass", "saw": "sah", "slept": "schlief"}
WHERE = {"here .": "hier .", "there today .": "heute dort .", "in the old house .": "in dem alten Haus ."}
FILES = {"train": slice(0, 24), "dev": slice(24, 30), "test": slice(30, None)}
FIGURES = ("bleu", "bleu_lowercase", "chrf", "exact_match", "loss", "perplexity")


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with parallel files such as train.en and train.de."""
    folder = tmp_path_factory.mktemp("pairs")
    pairs = [(f"the {a} {b} {c}", f"die {WHO[a]} {DID[b]} {WHERE[c]}") for c, b, a in product(WHERE, DID, WHO)]
    mixed = [pairs[7 * place % len(pairs)] for place in range(len(pairs))]
    for name, part in FILES.items():
        for side, ending in enumerate(("en", "de")):
            (folder / f"{name}.{ending}").write_text("".join(f"{pair[side]}\n" for pair in mixed[part]), "utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(parallel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    files = "\n".join(f"  {name}: [{parallel / name}.en, {parallel / name}.de]" for name in FILES)
    recipe.write_text(
        f"task: translate\ndata:\n  corpus: parallel\n{files}\ntokenizer: {{kind: words, split: whitespace}}\n"
        "batch: {tokens: 200, dev_pairs: 2}\nmodel: {kind: recurrent-seq2seq, hidden: 16}\ndecode: {beam: 3}\n"
        "train: {steps: 40, evaluate_every: 20, lr: 0.02, schedule: constant}\n",
        "utf-8",
    )
    run = recipe.parent / "run"
    assert main(["train", str(recipe), "--out", str(run)]) == 0
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def test_scores_match_sacrebleu(seqloom: Any, run: Path, parallel: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    shown = seqloom("evaluate", run, "--split", "test", "--out", out, "--json")
    assert shown.err == f"The translations are in {out}.\n"
    result, output, expected = shown.json, lines(out), lines(parallel / "test.de")
    bleu, chrf = BLEU(), CHRF()
    assert result["bleu"] == bleu.corpus_score(output, [expected]).score > 0
    assert result["chrf"] == chrf.corpus_score(output, [expected]).score
    assert result["signatures"]["bleu"] == str(bleu.get_signature())
    assert result["signatures"]["chrf"] == str(chrf.get_signature())
    assert result["exact_match"] == sum(map(str.__eq__, output, expected)) / len(expected)
    assert (result["run"], result["data"], result["pairs"]) == (str(run), "parallel, test", len(expected))
    assert result["decoding"] == "beam search, 3 hypotheses, length penalty 1"
    assert result["length_unit"] == "words"
    assert sum(row["pairs"] for row in result["by_length"]) == len(expected)
    by_hand = seqloom("bleu", "--reference", parallel / "test.de", "--hypothesis", out, "--json").json
    assert by_hand["bleu"] == result["bleu"] and by_hand["signatures"]["bleu"] == result["signatures"]["bleu"]


def test_written_translations_match_the_output_of_translate(
    seqloom: Any, run: Path, parallel: Path, tmp_path: Path, type_in: Any
) -> None:
    out = tmp_path / "out.txt"
    assert seqloom("evaluate", run, "--split", "test", "--out", out).code == 0
    type_in((parallel / "test.en").read_bytes())
    assert seqloom("translate", run).out == out.read_text("utf-8")


def test_metrics_are_saved_for_compare(seqloom: Any, run: Path) -> None:
    result = seqloom("evaluate", run, "--split", "test", "--json").json
    kept = json.loads((run / "metrics/test.json").read_text())
    assert {name: kept[name] for name in FIGURES} == {name: result[name] for name in FIGURES}
    assert (kept["signatures"], kept["decoding"]) == (result["signatures"], result["decoding"])
    assert load(run).evaluate("test") == {name: kept[name] for name in kept if name in FIGURES}
    (row,) = seqloom("compare", run, "--split", "test", "--json").json["runs"]
    assert row["metrics"]["loss"] == result["loss"]
    assert all(isinstance(value, float) for value in row["metrics"].values())


def test_baseline_is_computed_if_the_recipe_names_it(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load(trained).task()
    pairs = [
        ParallelExample(f"the {word} sat here .", f"die {word} sass hier .") for word in ("cat", "dog", "caterpillar")
    ]
    created = replace(task.corpus, splits={"train": pairs[:2], "dev": pairs[2:]})
    monkeypatch.setattr(task, "corpus", created)
    assert task.baseline_metrics("dev") == {}
    monkeypatch.setattr(task, "recipe", replace(task.recipe, baseline="nearest"))
    expected = BLEU().corpus_score(["die cat sass hier ."], [["die caterpillar sass hier ."]]).score
    assert task.baseline_metrics("dev") == {"baseline_bleu": expected}
    assert task.baseline_metrics("train") == {}
    monkeypatch.setattr(task, "corpus", replace(created, splits={"other": pairs}))  # pairs without training data
    assert task.baseline_metrics("other") == {}
    monkeypatch.setattr(task, "corpus", created)
    monkeypatch.setattr(task, "recipe", replace(task.recipe, metrics=("exact_match", "chrf")))
    assert list(task.baseline_metrics("dev")) == ["baseline_exact_match", "baseline_chrf"]


def test_control_characters_are_escaped(seqloom: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes("the cat \x1b[2J\x0b \u202eabc .\nthe 👩\u200d👧 sat\u2028 .\n".encode())
    (tmp_path / "a.de").write_bytes("die \x1b]0;x\x07 .\nshalom שלום\u200f .\n".encode())
    shown = seqloom("evaluate", run, "--source", tmp_path / "a.en", "--reference", tmp_path / "a.de")
    assert shown.code == 0 and "Translations that differ" in shown.out
    assert not set("\x1b\x07\x0b\u202e\u2028") & set(shown.out)
    assert "    the cat \\x1b[2J\\x0b \\u202eabc .\n    die \\x1b]0;x\\x07 .\n" in shown.out
    assert "    the 👩\u200d👧 sat\\u2028 .\n    shalom שלום\u200f .\n" in shown.out  # joiners are kept


def test_error_for_changed_data_suggests_source_and_reference(
    seqloom: Any, run: Path, parallel: Path, tmp_path: Path
) -> None:
    shutil.copytree(parallel, tmp_path / "files")
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(parallel), str(tmp_path / "files")))
    update_checksums(run)
    for side in ("en", "de"):
        (tmp_path / f"files/test.{side}").write_text("another one\n")
    shown = seqloom("evaluate", run, "--split", "test")
    shown.fails_with(3, "test of parallel differ", "evaluate a file: seqloom evaluate", lines=1)
    files = ["--source", tmp_path / "files/test.en", "--reference", tmp_path / "files/test.de"]
    assert seqloom("evaluate", run, *files).code == 0


def test_metrics_of_other_search_options_are_not_saved(seqloom: Any, run: Path) -> None:
    before = (run / "metrics/dev.json").read_text()
    result = seqloom("evaluate", run, "--beam", 1, "--json").json
    assert result["decoding"] == "greedy search"
    assert (run / "metrics/dev.json").read_text() == before
    result = seqloom("evaluate", run, "--length-penalty", 0, "--json").json
    assert result["decoding"] == "beam search, 3 hypotheses, length penalty 0"
    assert (run / "metrics/dev.json").read_text() == before
    assert result["loss"] == seqloom("evaluate", run, "--json").json["loss"]
    assert (run / "metrics/dev.json").read_text() != before


def test_files_of_a_split_have_the_same_metrics_as_the_split(seqloom: Any, run: Path, parallel: Path) -> None:
    files = parallel / "test.en", parallel / "test.de"
    other = seqloom("evaluate", run, "--source", files[0], "--reference", files[1], "--json").json
    assert not (run / "metrics/test.json").exists() and not (run / "metrics/other.json").exists()
    split = seqloom("evaluate", run, "--split", "test", "--json").json
    assert other.pop("data") == f"{files[0]} and {files[1]}"
    split.pop("data")
    assert other == split


def test_number_of_lines_is_preserved(seqloom: Any, run: Path, tmp_path: Path) -> None:
    source, reference, out = tmp_path / "s", tmp_path / "r", tmp_path / "out.txt"
    source.write_bytes("the cat sat here .\r\n\r\nthe\u2028dog sat here .\r\n   \nunheard-of words\n".encode())
    reference.write_bytes("die Katze sass hier .\n\nein\u2028Satz\n\n\n".encode())
    result = seqloom("evaluate", run, "--source", source, "--reference", reference, "--out", out, "--json").json
    assert result["pairs"] == 5
    output = out.read_bytes().decode().removesuffix("\n").split("\n")
    assert len(output) == 5 and output[1] == output[3] == "" and output[0] and output[4]


def test_text_output_shows_metrics_signature_and_examples(seqloom: Any, run: Path) -> None:
    shown = seqloom("evaluate", run)
    result = seqloom("evaluate", run, "--json").json
    assert shown.code == 0 and shown.err == ""
    first, *rest = shown.out.splitlines()
    assert first == f"{run} on parallel, dev: 6 pairs, en to de; beam search, 3 hypotheses, length penalty 1"
    assert rest[0] == f"  BLEU                   {result['bleu']:9.2f}   {result['signatures']['bleu']}"
    assert rest[1].startswith("  BLEU, lowercased ") and rest[2].startswith("  chrF ")
    assert rest[3].split() == ["exact", "match", f"{100 * result['exact_match']:.2f}", "%"]
    assert "loss, nats per token" in rest[4]
    assert rest[6].startswith("  BLEU by length of the source")
    assert "Translations that differ from their reference" in shown.out
    example = result["examples"][0]
    assert f"    {example['source']}\n    {example['reference']}\n    {example['hypothesis']}\n" in shown.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["x.csv"], 3, ["x.csv does not exist"]),
        (["--column", "en"], 2, ["require a file: add FILE after the run"]),
        (["--source", "x.txt"], 2, ["must be given together"]),
        (["--reference", "x.txt"], 2, ["must be given together"]),
        (["--split=dev", "--source=a", "--reference=b"], 2, ["cannot be used together"]),
        (["--source=missing.en", "--reference=missing.de"], 3, ["missing.en", "does not exist"]),
        (["--beam", "0"], 2, ["beam must be at least 1"]),
        (["--length-penalty", "-1"], 2, ["--length-penalty must be at least 0"]),
        (["--out", "nowhere/out.txt"], 2, ["nowhere does not exist"]),
        (["--out", "."], 2, ["is a folder"]),
        (["--split", "tset"], 2, ["did you mean test?"]),
    ],
)
def test_invalid_arguments_are_rejected(
    seqloom: Any, trained: Path, workdir: Path, words: list[str], code: int, message: list[str]
) -> None:
    seqloom("evaluate", trained, *words).fails_with(code, *message, lines=1)
    assert not any(workdir.iterdir())


def test_existing_file_is_not_overwritten(seqloom: Any, trained: Path, parallel: Path) -> None:
    before = (parallel / "dev.de").read_bytes()
    files = ["--source", parallel / "dev.en", "--reference", parallel / "dev.de"]
    seqloom("evaluate", trained, *files, "--out", parallel / "dev.de").fails_with(2, "dev.de exists", lines=1)
    assert (parallel / "dev.de").read_bytes() == before


def test_files_of_different_length_are_rejected(seqloom: Any, trained: Path, parallel: Path) -> None:
    files = parallel / "dev.en", parallel / "train.de"
    shown = seqloom("evaluate", trained, "--source", files[0], "--reference", files[1])
    shown.fails_with(3, f"{files[0]} has 6", f"{files[1]} has 24")


@pytest.mark.parametrize(
    "words", [["--beam=2"], ["--length-penalty=1"], ["--source=a", "--reference=b"], ["--out=x.txt"]]
)
@pytest.mark.parametrize("name", ["chars", "grams"])
def test_translation_options_require_a_translator(
    seqloom: Any, runs: Path, workdir: Path, name: str, words: list[str]
) -> None:
    seqloom("evaluate", runs / name, *words).fails_with(2, "require a translator", "is a language model.", lines=1)
    assert not any(workdir.iterdir())


def test_translator_cannot_be_interpolated(seqloom: Any, runs: Path, trained: Path) -> None:
    seqloom("evaluate", runs / "chars", trained, "--interpolate").fails_with(2, "a translator", "a language model")


# --- several models by length -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(trained: Path, parallel: Path) -> Path:
    """A second translator, trained for a few steps on the same data."""
    run = trained.parent / "other"
    assert main(["train", str(trained.parent / "tiny.yaml"), "train.steps=4", "seed=2", "--out", str(run)]) == 0
    return run


def test_lengths_compare_models_separately(seqloom: Any, trained: Path, other: Path, tmp_path: Path) -> None:
    plot = tmp_path / "lengths.svg"
    both = seqloom("evaluate", trained, other, "--split", "test", "--lengths", plot, "--json").json["runs"]
    for run, shown in zip((trained, other), both, strict=True):
        assert shown == seqloom("evaluate", run, "--split", "test", "--json").json
    assert "<svg" in plot.read_text()
    table = seqloom("evaluate", trained, other, "--split", "test", "--lengths", plot).out.splitlines()
    assert table[1].split() == ["words", "pairs", "run", "other"]
    rows = [line.split() for line in table[2 : 2 + len(both[0]["by_length"])]]
    assert [float(row[2]) for row in rows] == [round(row["bleu"], 2) for row in both[0]["by_length"]]
    assert [float(row[3]) for row in rows] == [round(row["bleu"], 2) for row in both[1]["by_length"]]
    assert table[2 + len(rows)].split()[0] == "all"


def test_length_plot_requires_the_same_pairs(
    seqloom: Any, trained: Path, other: Path, parallel: Path, run: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "lengths.png"
    changed = tmp_path / "changed.yaml"
    changed.write_text(
        (trained.parent / "tiny.yaml").read_text().replace(f"{parallel / 'test'}.en", f"{tmp_path}/t.en")
    )
    (tmp_path / "t.en").write_text("".join(f"{line} now\n" for line in lines(parallel / "test.en")))
    assert seqloom("train", changed, "train.steps=2", "--out", tmp_path / "third").code == 0
    words = ["evaluate", trained, tmp_path / "third", "--split", "test", "--lengths", plot]
    seqloom(*words).fails_with(2, "but run and third have different data", "--source FILE --reference FILE")
    given = ["--source", parallel / "dev.en", "--reference", parallel / "dev.de"]
    assert seqloom("evaluate", trained, tmp_path / "third", *given, "--lengths", plot).code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_wrong_uses_of_lengths_are_reported(seqloom: Any, trained: Path, runs: Path, tmp_path: Path) -> None:
    plot = tmp_path / "x.png"
    seqloom("evaluate", trained, runs / "chars", "--lengths", plot).fails_with(2, "--lengths requires translators")
    seqloom("evaluate", trained, "--lengths", tmp_path / "x.pdf").fails_with(2, "must end in .png or .svg")
    seqloom("evaluate", trained, "--lengths", plot, "--split", "tst").fails_with(2, "There is no split 'tst'")
    seqloom("evaluate", trained, "--lengths", plot, "--out", tmp_path / "o.txt").fails_with(2, "--lengths compares")
