"""Required and forbidden terms: `seqloom translate --glossary`, `--force`, `--forbid`, `--force-column`."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import seqloom
from seqloom.cli.app import main
from seqloom.core.errors import UsageError
from seqloom.predict.loader import load

RECIPE = """
task: translate
data: {{corpus: parallel, source: en, target: de, train: [{folder}/a.en, {folder}/a.de]}}
tokenizer: {tokenizer}
batch: {{tokens: 200, dev_pairs: 0}}
model: {{kind: {model}}}
decode: {{beam: 4, max_length: 40}}
train: {{steps: 30, lr: 0.02, device: cpu, schedule: constant}}
"""
RUNS = {
    "bytes": ("{kind: byte-pair, size: 300}", "recurrent-seq2seq, hidden: 16"),
    "words": ("{kind: words, lowercase: true}", "recurrent-seq2seq, hidden: 16"),
    "characters": (
        "{kind: characters}",
        "transformer, d_model: 16, heads: 2, d_ff: 16, encoder_layers: 1, decoder_layers: 1",
    ),
}
SENTENCES = {
    "en": ("the cat sat", "a dog saw", "the owl ran"),
    "de": ("die Katze sass", "ein Hund sah", "die Eule lief"),
}
LINES = ["the cat sat 3 .", "", "a dog saw 7 .", "The owl ran 2 ."]
TERMS = "cat\tKater|Kätzchen\nowl\tEule\nthe owl\tder Uhu\n"
GLOSSARY = {"cat": "Katze|Hund", "the owl": "Eule"}  # words of the training data


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translators")
    for language, words in SENTENCES.items():
        (folder / f"a.{language}").write_text("".join(f"{words[n % 3]} {n} .\n" for n in range(36)))
    (folder / "terms.tsv").write_text(TERMS)
    for name, (tokenizer, model) in RUNS.items():
        (folder / f"{name}.yaml").write_text(RECIPE.format(folder=folder, tokenizer=tokenizer, model=model))
        assert main(["train", str(folder / f"{name}.yaml"), "--out", str(folder / name)]) == 0
    return folder


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", RUNS)
def test_translations_contain_the_terms_of_their_lines(trained: Path, name: str, beam: int) -> None:
    translator = load(trained / name, "cpu")
    plain = [each.text for each in translator.translate(LINES, beam=beam)]
    answers = list(translator.translate(LINES, beam=beam, glossary=GLOSSARY))
    required = [["cat"], [], [], ["the owl"]]
    for answer, sources, before in zip(answers, required, plain, strict=True):
        assert answer.terms is not None and [term.source for term in answer.terms] == sources
        assert all(term.occurs_in(answer.text) for term in answer.terms) and answer.missing_terms == []
        assert all(form.islower() == (name == "words") for term in answer.terms for form in term.forms)
        if not sources:
            assert answer.text == before
    # Control: the terms change some translations
    assert any(answer.text != before for answer, before in zip(answers, plain, strict=True))


def test_command_reports_the_terms(seqloom: Any, trained: Path, type_in: Any) -> None:
    type_in("".join(f"{line}\n" for line in LINES).encode())
    result = seqloom("translate", trained / "bytes", "--glossary", trained / "terms.tsv", "--json")
    first, blank, plain, owl = result.objects
    assert first["terms"] == [{"source": "cat", "forms": ["Kater", "Kätzchen"], "met": True}]
    assert "Kater" in first["translation"] or "Kätzchen" in first["translation"]
    assert [each["terms"] for each in (blank, plain)] == [[], []]
    assert [term["source"] for term in owl["terms"]] == ["the owl"]  # only the longest term is used
    assert "der Uhu" in owl["translation"] or owl["translation"].startswith("Der Uhu")
    assert all(each["missing_terms"] == [] for each in result.objects) and result.err == ""
    without = seqloom("translate", trained / "bytes", LINES[0], "--json").json
    assert "terms" not in without and "Kater" not in without["translation"]


def test_terms_of_all_lines_are_forced_and_forbidden(seqloom: Any, trained: Path) -> None:
    run = trained / "bytes"
    for beam in (1, 4):
        forced = seqloom("translate", run, *LINES, "--force", "Maus|Ratte", "--force", "x-y z", "--beam", beam)
        lines = forced.out.split("\n")
        assert all(("Maus" in line or "Ratte" in line) and "x-y z" in line for line in (lines[0], lines[2], lines[3]))
        assert lines[1] == ""
        plain = seqloom("translate", run, LINES[0], "--beam", beam).out
        word = plain.split()[0]
        forbidden = seqloom("translate", run, LINES[0], "--forbid", word, "--beam", beam).out
        assert word in plain.split() and word not in forbidden.split()


def test_terms_combine_with_prefix_candidates_and_alignment(seqloom: Any, trained: Path) -> None:
    result = seqloom(
        "translate",
        trained / "bytes",
        LINES[0],
        "--force",
        "Maus",
        "--prefix",
        "Am ",
        "--n-best",
        3,
        "--alignment",
        "--json",
    ).json
    assert len(result["candidates"]) == 3
    for candidate in result["candidates"]:
        assert candidate["text"].startswith("Am ") and "Maus" in candidate["words"]


def test_translation_of_an_ensemble_contains_the_terms(trained: Path) -> None:
    both = seqloom.ensemble([trained / "bytes", trained / "bytes"], "cpu")
    answers = both.translate(LINES, glossary=trained / "terms.tsv")
    expected = load(trained / "bytes", "cpu").translate(LINES, glossary=trained / "terms.tsv")
    assert [each.text for each in answers] == [each.text for each in expected]


def test_term_longer_than_the_translation_is_missing(seqloom: Any, trained: Path) -> None:
    words = ["--force", "Hund", "--force", "Elefantenrüssel", "--max-length", 8]
    result = seqloom("translate", trained / "bytes", LINES[2], LINES[0], *words)
    assert "note: 2 lines: the translation lacks a required term; the first is line 1:" in result.err
    first = seqloom("translate", trained / "bytes", LINES[2], *words, "--json").json
    assert "Elefantenrüssel" in first["missing_terms"]
    assert [term["met"] for term in first["terms"]] == ["Hund" not in first["missing_terms"], False]


def test_terms_outside_the_vocabulary_are_rejected_or_noted(seqloom: Any, trained: Path) -> None:
    run = trained / "words"
    seqloom("translate", run, "the cat", "--force", "Kater").fails_with(
        3,
        "The term 'Kater' cannot be generated: the vocabulary of the model lacks 'kater'.",
        "tokenizer.kind=byte-pair",
    )
    result = seqloom("translate", run, "a dog", "the cat", "--glossary", trained / "terms.tsv", "--json")
    assert [each["missing_terms"] for each in result.objects] == [[], ["Kater"]]
    note = "the vocabulary of the model cannot write a required term; the first is line 2: Kater"
    assert f"note: 1 line: {note}" in result.err and "lacks a required term" not in result.err


def test_table_has_terms_for_each_row(seqloom: Any, trained: Path, workdir: Path) -> None:
    run, options = trained / "bytes", ["--in", "in.csv", "--column", "text", "--force-column", "must"]
    (workdir / "in.csv").write_text("text,must\nthe cat sat 3 .,Maus; Ratte|Vogel\na dog saw 7 .,\n,Maus\n")
    result = seqloom("translate", run, *options, "--out", "out.csv")
    assert result.code == 0, result.err
    with open("out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert "Maus" in rows[0]["translation"] and ("Ratte" in rows[0]["translation"] or "Vogel" in rows[0]["translation"])
    assert rows[1]["translation"] == load(run, "cpu").translate("a dog saw 7 .")[0].text
    assert [row["missing_terms"] for row in rows] == ["[]", "[]", "[]"] and "terms" not in rows[0]
    objects = [{"text": "the cat", "must": ["Maus", "Ratte"]}, {"text": "the cat"}]
    (workdir / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in objects))
    shown = seqloom("translate", run, "--in", "in.jsonl", "--column", "text", "--force-column", "must")
    first, second = shown.objects
    assert "Maus" in first["translation"] and "Ratte" in first["translation"] and "Maus" not in second["translation"]
    seqloom("translate", run, *options[:-1], "mist").fails_with(
        2, "no column 'mist' for --force-column: did you mean must?"
    )


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--glossary", "none.tsv"], 3, "none.tsv does not exist"),
        (["--force", " "], 2, "A term must be one or more words"),
        (["--force", "a", "--forbid", "a|b"], 2, "The term 'a' is both required and forbidden"),
        (["--force-column", "x"], 2, "--force-column requires a table: add --in FILE"),
        (["--force", "a", "--rescore", "list"], 2, "--force cannot be combined with --rescore"),
        (["--glossary", "a.tsv", "--rescore", "list"], 2, "--glossary cannot be combined with --rescore"),
    ],
)
def test_invalid_options_are_reported(seqloom: Any, trained: Path, options: list[str], code: int, message: str) -> None:
    seqloom("translate", trained / "bytes", "the cat", *options).fails_with(code, message)


def test_too_few_lists_of_terms_are_reported(trained: Path) -> None:
    translator = load(trained / "bytes", "cpu")
    with pytest.raises(UsageError, match="line 2 has none"):
        list(translator.translate(["the cat", "a dog"], line_terms=[["Maus"]]))


def test_evaluation_compares_with_and_without_the_glossary(seqloom: Any, trained: Path) -> None:
    run, glossary = trained / "bytes", trained / "terms.tsv"
    content = seqloom("evaluate", run, "--glossary", glossary, "--json").json
    effect, plain = content["glossary"], seqloom("evaluate", run, "--json").json
    assert effect["entries"] == 3 and effect["terms"] >= effect["lines_with_terms"] > 0
    assert effect["term_accuracy"]["with"] == 1 and effect["term_accuracy"]["without"] < 1
    assert effect["bleu"] == {"without": plain["bleu"], "with": content["bleu"]}
    assert content["decoding"] == f"{plain['decoding']}, glossary"
    shown = seqloom("evaluate", run, "--glossary", glossary)
    assert f"glossary {glossary}: {effect['terms']} terms in" in shown.out and "100.00 %" in shown.out
    stored = load(run, "cpu").run.metrics("dev")
    assert stored is not None and stored["bleu"] == plain["bleu"]  # the stored metric is that without a glossary
    seqloom("evaluate", trained / "bytes", "--glossary", "none.tsv").fails_with(3, "none.tsv does not exist")
