"""Tests of `seqloom init` for labelled texts and tagged sentences."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.understanding import reviews, sentences, write_reviews, write_sentences

from seqloom.recipes import read_recipe
from seqloom.recipes.drafts import Request, choose_setting, resolve_bounds


def steps(name: str) -> list[str]:
    return [name, "train.steps=2", "train.warmup=0", "--out", "runs/it"]


def test_classifier_recipe_is_trained(seqloom: Any, workdir: Path) -> None:
    write_reviews(workdir / "reviews.csv")
    shown = seqloom(
        "init", "--no-estimate", "reviews.csv", "--task", "classify", "--column", "review", "--label", "verdict"
    )
    assert shown.code == 0, shown.err
    assert shown.out.splitlines() == [
        'reviews.csv: texts in the column "review", labels in the column "verdict". 104 examples, 2 labels, 416 words, '
        "2,087 characters to train on.",
        "Wrote reviews.yaml. Check it, then run: seqloom train reviews.yaml",
    ]
    _, recipe = read_recipe("reviews.yaml")
    assert (recipe.data.text, recipe.data.label) == ("review", "verdict")
    assert recipe.loss.class_weights == "none" and recipe.monitor == "accuracy"
    assert "# the column of the labels: bad, good" in Path("reviews.yaml").read_text()
    assert seqloom("train", *steps("reviews.yaml")).code == 0
    assert seqloom("classify", "runs/it", "a dull film").code == 0


@pytest.mark.parametrize("kind", ["bag", "convolution", "transformer"])
def test_comments_and_errors_name_the_lines_of_each_encoder(seqloom: Any, workdir: Path, kind: str) -> None:
    """The comments and the error messages name the lines that belong to each kind."""
    write_reviews(workdir / "reviews.csv")
    seqloom("init", "--no-estimate", "reviews.csv", "--column", "review", "--label", "verdict", "--model", "lstm-small")
    text = Path("reviews.yaml").read_text()
    lines = text.replace("kind: recurrent", f"kind: {kind}").splitlines()
    Path("reviews.yaml").write_text("\n".join(lines))
    shown = seqloom("train", "reviews.yaml", "--out", "runs/it")
    rejected = f"model.encoder.cell: is a key of kind recurrent, not of {kind}; leave it out"
    shown.fails_with(2, rejected, lines=9)
    first = next(place for place, line in enumerate(lines) if "for recurrent, like the next two keys" in line)
    kept = [line for line in lines[:first] + lines[first + 3 :] if kind != "bag" or "remove it for bag" not in line]
    Path("reviews.yaml").write_text("\n".join(kept))
    assert read_recipe("reviews.yaml")[1].model.encoder.kind == kind


def test_imbalanced_classes_are_weighted(seqloom: Any, workdir: Path) -> None:
    rows = [row for row in reviews() if row[1] == "good"] + [row for row in reviews() if row[1] == "bad"][:6]
    write_reviews(workdir / "reviews.csv", rows)
    seqloom("init", "--no-estimate", "reviews.csv", "--column", "review", "--label", "verdict")
    _, recipe = read_recipe("reviews.yaml")
    assert recipe.loss.class_weights == "balanced" and recipe.monitor == "macro_f1"


@pytest.mark.parametrize("name", ["own.jsonl", "own.csv", "own.tsv", "own.tsv.gz"])
def test_columns_text_and_label_are_the_default(seqloom: Any, workdir: Path, name: str) -> None:
    import gzip

    if "jsonl" in name:
        content = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in reviews())
    else:
        sign = "," if "csv" in name else "\t"
        content = f"text{sign}label\n" + "".join(f"{text.replace(',', '')}{sign}{label}\n" for text, label in reviews())
    Path(name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    more = ["--task", "classify"] if "tsv" in name else []
    assert seqloom("init", "--no-estimate", name, *more).code == 0
    assert read_recipe("own.yaml")[1].task == "classify"
    assert seqloom("train", *steps("own.yaml")).code == 0


def test_columns_are_selected_by_number(seqloom: Any, workdir: Path) -> None:
    Path("rows.tsv").write_text("".join(f"{n}\t{text}\t{label}\n" for n, (text, label) in enumerate(reviews())))
    assert seqloom("init", "--no-estimate", "rows.tsv", "--column", "2", "--label", "3").code == 0
    _, recipe = read_recipe("rows.yaml")
    assert (recipe.data.text, recipe.data.label) == (2, 3)
    assert seqloom("train", *steps("rows.yaml")).code == 0


def test_names_are_quoted_in_yaml(seqloom: Any, workdir: Path) -> None:
    file = workdir / "my: own #1.csv"
    content = "null,yes: no\n" + "".join(f'"{text}",{label}\n' for text, label in reviews())
    file.write_text(content)
    assert (
        seqloom("init", "--no-estimate", file.name, "--column", "null", "--label", "yes: no", "--out", "x.yaml").code
        == 0
    )
    _, recipe = read_recipe("x.yaml")
    assert (recipe.data.text, recipe.data.label) == ("null", "yes: no")
    assert seqloom("train", *steps("x.yaml")).code == 0


def test_tagger_recipe_is_trained(seqloom: Any, workdir: Path) -> None:
    write_sentences(workdir / "mine.conll", [[("Ann", "O"), ("Bee", "I-PER")], *sentences()])
    shown = seqloom("init", "--no-estimate", "mine.conll")
    assert shown.code == 0, shown.err
    assert "60 sentences," in shown.out and "119 spans to train on." in shown.out
    assert "repaired" in shown.out
    _, recipe = read_recipe("mine.yaml")
    assert recipe.task == "tag" and recipe.model.crf and recipe.data.format == "conll"
    assert seqloom("train", *steps("mine.yaml")).code == 0
    assert seqloom("tag", "runs/it", "Ann lives in Rome.").code == 0


def test_part_of_speech_recipe_is_trained(seqloom: Any, workdir: Path) -> None:
    words = [[(word, "NAME" if tag != "O" else "X") for word, tag in one] for one in sentences()]
    rows = [
        "".join(f"{n}\t{word}\t_\t{tag}\t_\t_\t0\troot\t_\t_\n" for n, (word, tag) in enumerate(one, start=1))
        for one in words
    ]
    Path("mine.conllu").write_text("\n".join(rows))
    shown = seqloom("init", "--no-estimate", "mine.conllu")
    assert "2 tags" in shown.out
    _, recipe = read_recipe("mine.yaml")
    assert not recipe.model.crf and recipe.data.format == "conllu"
    assert seqloom("train", *steps("mine.yaml")).code == 0


def test_unique_labels_are_noted(seqloom: Any, workdir: Path) -> None:
    rows = "".join(f"{n},this is text {n}\n" for n in range(50))
    (workdir / "mine.csv").write_text(f"id,text\n{rows}")
    shown = seqloom("init", "--no-estimate", "mine.csv", "--label", "id")
    assert shown.code == 0, shown.err
    assert "48 of the 48 labels have only one training example; check data.label" in shown.out


@pytest.mark.parametrize("words", [500, 20_000, 200_000, 5_000_000])
def test_sizes_grow_with_the_text(words: int) -> None:
    small, large = choose_setting("tag", words // 2, Request([])), choose_setting("tag", words, Request([]))
    assert small["hidden"] <= large["hidden"]
    assert resolve_bounds(small["tokens"], words // 2) <= resolve_bounds(large["tokens"], words)
    assert resolve_bounds(small["epochs"], words // 2) >= resolve_bounds(large["epochs"], words)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["numbers.csv"], 2, "numbers.csv was not recognized as data for any task. Its columns: a, b."),
        (
            ["reviews.csv", "--column", "reviw", "--label", "verdict"],
            3,
            "did you mean review? (choose from review, verdict)",
        ),
        (["reviews.csv", "--column", "review", "--label", "review"], 2, "must be different columns"),
        (
            ["plain.txt", "--task", "classify", "--column", "a", "--label", "b"],
            3,
            "plain.txt has no column 'a' for --column",
        ),
        (["plain.md", "--task", "classify"], 2, "was not recognized as data for the task classify"),
        (
            ["plain.txt", "--column", "a", "--task", "tag"],
            2,
            "--column and --label are the numbers of the columns of word and tag",
        ),
        (["reviews.csv", "plain.txt", "--task", "classify"], 2, "needs one file"),
        (["missing.csv", "--column", "a", "--label", "b"], 3, "missing.csv"),
        (["same.csv"], 3, "must have at least two labels"),
        (["missing.conll"], 3, "missing.conll"),
        (["plain.txt", "--task", "tag"], 3, "must have"),
    ],
)
def test_invalid_input_is_rejected(seqloom: Any, workdir: Path, words: list[str], code: int, message: str) -> None:
    write_reviews(workdir / "reviews.csv")
    (workdir / "same.csv").write_text("text,label\n" + "".join(f"text {n},same\n" for n in range(20)))
    (workdir / "numbers.csv").write_text("a,b\n2,1\n1,2\n")
    for name in ("plain.txt", "plain.md"):
        (workdir / name).write_text("one line of text\nand another\n")
    seqloom("init", "--no-estimate", *words).fails_with(code, message)
    assert not list(workdir.glob("*.yaml"))
