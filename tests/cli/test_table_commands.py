"""Table input and table output for every command that predicts from lines. Each result is compared with `--json`."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.denoising import denoise_recipe
from tests.masked import masked_recipe
from tests.matching import recipe
from tests.understanding import classify_recipe, trained

from seqloom.cli.app import main

CONTEXT = "There is a green box.\nIt stands on the table; “so” it is 😀."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for each kind of input: one text, two texts, a text with options, and a series."""
    folder = tmp_path_factory.mktemp("tables")
    for name in ("pair", "score", "choice", "answer"):
        trained(recipe(folder, name), folder / name)
    steps = ["train.steps=1", "train.evaluate_every=1"]
    trained(classify_recipe(folder, *steps), folder / "classifier")
    trained(masked_recipe(folder, *steps), folder / "bert")
    trained(denoise_recipe(folder, "noise.kind=bart", *steps), folder / "denoiser")
    waves = [[f"{math.sin(step / speed + shift):.3f}" for step in range(9)] for shift in range(30) for speed in (1, 4)]
    rows = [",".join([*wave, ("fast", "slow")[index % 2]]) for index, wave in enumerate(waves)]
    (folder / "waves.csv").write_text("\n".join([",".join([*map(str, "abcdefghi"), "label"]), *rows]) + "\n")
    draft = ["init", str(folder / "waves.csv"), "--no-estimate", "--out", str(folder / "waves.yaml")]
    assert main(draft) == 0
    train = ["train", str(folder / "waves.yaml"), "train.epochs=null", "train.steps=1", "--out", str(folder / "waves")]
    assert main(train) == 0
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("pair", "score", "choice", "answer", "classifier", "bert", "denoiser", "waves", "waves.csv"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cells(text: str, **options: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), **options))


def write_table(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], delimiter: str = ",") -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([names, *rows])


def test_pairs_of_two_columns_are_matched(seqloom: Any, here: Path) -> None:
    write_table(here / "in.csv", ["id", "b", "a"], [["1", "it is red", "a grey fox"], ["2", "", "a red fox"]])
    result = seqloom("match", "pair", "--in", "in.csv", "--column", "a", "--column", "b", "--top", "2")
    first, second = cells(result.out)
    expected = seqloom("match", "pair", "a grey fox", "it is red", "--json").json
    assert first["label"] == expected["label"] and first["id"] == "1"
    assert float(first["probability"]) == pytest.approx(expected["probability"], abs=1e-6)
    assert {first["label"], first["label_2"]} == {"yes", "no"}
    assert second["label"] == second["label_2"] == ""  # the text is blank
    scored = seqloom("match", "score", "--in", "in.csv", "--column", "3", "--column", "2")
    expected = seqloom("match", "score", "a grey fox", "it is red", "--json").json
    assert float(cells(scored.out)[0]["score"]) == pytest.approx(expected["score"], abs=1e-5)


def test_columns_of_the_training_data_are_the_default(seqloom: Any, here: Path) -> None:
    write_table(here / "in.csv", ["second", "x", "first"], [["it is red", "7", "a grey fox"]])
    both = [seqloom(command, "pair", "--in", "in.csv") for command in ("match", "predict")]
    assert both[0].out == both[1].out
    assert cells(both[0].out)[0]["label"] == seqloom("match", "pair", "a grey fox", "it is red", "--json").json["label"]


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl"])
def test_options_are_read_from_columns_or_a_list(seqloom: Any, here: Path, name: str) -> None:
    """Blank options at the end of a row are omitted."""
    rows = [["the fox is", "red", "blue", "grey"], ["the cat is", "green", "red", ""]]
    write_table(here / "in.csv", ["text", "o1", "o2", "o3"], rows)
    objects = [{"text": row[0], "options": [option for option in row[1:] if option]} for row in rows]
    (here / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in objects))
    named = [word for column in ("text", "o1", "o2", "o3") for word in ("--column", column)]
    result = seqloom("choose", "choice", "--in", name, *(named if name == "in.csv" else []), "--out", "out.jsonl")
    assert result.code == 0, result.err
    found = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    for row, answer in zip(objects, found, strict=True):
        expected = seqloom("choose", "choice", row["text"], *row["options"], "--json").json["options"][0]
        assert answer["choice"] == expected["text"] == row["options"][answer["position"] - 1]
        assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-5)


def test_each_question_has_its_own_context(seqloom: Any, here: Path) -> None:
    """Line breaks in a context are kept, so that the offsets of answers refer to the cell."""
    write_table(here / "in.csv", ["context", "question"], [[CONTEXT, "Which colour?"], ["", "Which?"]], ";")
    result = seqloom("answer", "answer", "--in", "in.csv", "--top", "2")
    first, second = cells(result.out, delimiter=";")  # the output has the delimiter of the input
    (here / "page.txt").write_text(CONTEXT)
    expected = seqloom("answer", "answer", "--context", "page.txt", "--question", "Which colour?", "--json").json
    assert first["context"] == CONTEXT and first["answer"] == expected["answer"]
    assert CONTEXT[int(first["start"]) : int(first["end"])] == first["answer"]
    assert "answer_2" in first and second["answer"] == second["probability"] == ""
    seqloom("answer", "answer", "--question", "x").fails_with(2, "--context FILE, or a table: --in FILE", lines=1)


def test_masks_are_filled_and_texts_are_denoised(seqloom: Any, here: Path) -> None:
    write_table(here / "in.csv", ["text"], [["The cats [MASK] all day ."], [""]])
    assert seqloom("fill-mask", "bert", "--in", "in.csv", "--top", "2", "--out", "out.jsonl").code == 0
    item = json.loads((here / "out.jsonl").read_text().splitlines()[0])
    expected = seqloom("fill-mask", "bert", item["text"], "--top", "2", "--json").json
    assert item["filled"] == expected["filled"] and len(item["masks"][0]) == 2
    denoised = cells(seqloom("denoise", "denoiser", "--in", "in.csv").out)
    assert denoised[0]["denoised"] == seqloom("denoise", "denoiser", item["text"], "--json").json["denoised"]


def test_vectors_become_a_column_or_an_array(seqloom: Any, here: Path) -> None:
    write_table(here / "in.csv", ["id", "text"], [["1", "a fine film"], ["2", "a dull plot"]])
    for name in ("out.jsonl", "out.npy"):
        assert seqloom("embed", "classifier", "--in", "in.csv", "--out", name).code == 0
    rows = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["1", "2"]
    vectors = np.load(here / "out.npy")
    np.testing.assert_allclose([row["vector"] for row in rows], vectors, rtol=1e-6)
    seqloom("embed", "classifier", "a text", "--out", "one.npy")
    seqloom("embed", "classifier", "a fine film", "--out", "same.npy")
    np.testing.assert_allclose(np.load(here / "same.npy")[0], vectors[0], rtol=1e-5)
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    assert seqloom("embed", "classifier", "--in", "in.csv", "--out", "out.parquet").code == 0
    assert parquet.read_table(here / "out.parquet")["vector"].to_pylist() == [row["vector"] for row in rows]


def test_identical_patterns_keep_their_columns(seqloom: Any, here: Path) -> None:
    texts = ["a dull plot", "", "a fine film", "a bad story"]
    write_table(here / "in.csv", ["id", "text"], [[str(number), text] for number, text in enumerate(texts)])
    result = seqloom("similar", "classifier", "--in", "in.csv", "--query", "a fine film", "--top", "2")
    best = cells(result.out)
    assert best[0]["id"] == "2" and best[0]["query"] == "a fine film" and float(best[0]["cosine"]) > 0.999
    assert len(best) == 2 and best[1]["id"] in ("0", "3")


def test_language_model_scores_continues_and_answers_rows(seqloom: Any, here: Path, runs: Path) -> None:
    write_table(here / "in.csv", ["text", "score"], [["the cat", "1"], ["the dog ran", "2"]])
    run = runs / "chars"
    scored = cells(seqloom("score", run, "--in", "in.csv").out)
    expected = seqloom("score", run, "the cat", "the dog ran", "--json").objects
    assert [float(row["log_prob"]) for row in scored] == pytest.approx([item["log_prob"] for item in expected])
    assert [row["score"] for row in scored] == ["1", "2"]
    generated = seqloom("generate", run, "--in", "in.csv", "--max-tokens", "5", "--samples", "2", "--seed", "3")
    texts = [
        seqloom("generate", run, "--prompt", "the cat", "--max-tokens", "5", "--seed", seed).out for seed in (3, 4)
    ]
    row = cells(generated.out)[0]
    assert [f"the cat{row[name]}\n" for name in ("generated", "generated_2")] == texts
    answered = cells(seqloom("prompt", run, "--in", "in.csv", "--choices", "cat,owl").out)
    assert answered[0]["label"] == seqloom("prompt", run, "the cat", "--choices", "cat,owl", "--json").json["label"]


def test_series_in_rows_are_classified(seqloom: Any, here: Path) -> None:
    """All columns except the label form the series."""
    rows = cells(seqloom("classify", "waves", "--in", "waves.csv").out)
    values = [rows[0][name] for name in "abcdefghi"]
    assert rows[0]["predicted_label"] == seqloom("predict", "waves", ",".join(values), "--json").json["label"]
    assert len(rows) == 60


def test_nested_objects_stay_nested_in_json_lines(seqloom: Any, here: Path) -> None:
    """CSV output has a column for each value. Columns that only some rows have keep their position."""
    row = {"id": 1, "doc": {"body": "a fine film über 😀\u2028"}, "tags": ["x"], "n": 1}
    other = {"id": 2, "doc": {"body": "a dull plot"}, "when": None, "n": "b"}
    lines = [json.dumps(item, ensure_ascii=False) for item in (row, other)]
    (here / "in.jsonl").write_text("\n".join(lines) + "\n")
    for name in ("out.jsonl", "out.csv"):
        command = ["classify", "classifier", "--in", "in.jsonl", "--column", "doc.body", "--out", name]
        assert seqloom(*command).code == 0
    content = (here / "out.jsonl").read_text()
    first, second = (json.loads(line) for line in content.splitlines())
    assert first | row == first and second | other == second and set(first) == {*row, "label", "probability"}
    assert "über 😀" in content
    table = cells((here / "out.csv").read_text())
    assert list(table[0]) == ["id", "doc.body", "tags", "n", "when", "label", "probability"]
    assert table[0]["tags"] == '["x"]' and table[1]["n"] == "b"


def test_odd_tables_keep_all_cells(seqloom: Any, here: Path) -> None:
    """Test an index without a name, a repeated name, a short row, semicolons, and commas and quotes in cells."""
    (here / "in.csv").write_text('\ufeff;text;text;label\n0;"a ""fine"", film;\nin lines";x;y\n1;a dull, dull, plot\n')
    result = seqloom("classify", "classifier", "--in", "in.csv", "--column", "text")
    first, second = cells(result.out, delimiter=";")
    assert first["text"] == 'a "fine", film;\nin lines' and first["text_2"] == "x" and first["label"] == "y"
    assert first["predicted_label"] in ("good", "bad") and second["text_2"] == second["label"] == ""
    assert second[""] == "1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "text;n\na;1\nb;2;3\n",
            "Row 2 of in.csv must have 2 columns, like the first row, but has 3: b;2;3. Quote cells",
        ),
        ('text,n\na,1\n"b,2\n', "line 3 of in.csv has a quotation mark that is never closed"),
    ],
)
def test_damaged_table_is_an_error(seqloom: Any, here: Path, content: str, message: str) -> None:
    (here / "in.csv").write_text(content)
    seqloom("classify", "classifier", "--in", "in.csv", "--out", "out.csv").fails_with(3, message, lines=1)
    assert not (here / "out.csv").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["classify", "classifier", "--json"], "--json cannot be combined with --in; leave out one of them; for JSON"),
        (["classify", "classifier", "--why"], "--why cannot be combined with --in"),
        (["match", "pair", "--column", "n"], "Name the columns of first and second with --column; in.csv has text, n."),
        (["predict", "pair", "--file", "in.csv"], "--file cannot be combined with --in"),
        (["answer", "answer", "--question", "x"], "Texts and --in cannot be used together"),
    ],
)
def test_unsuitable_options_are_rejected(seqloom: Any, here: Path, words: list[str], message: str) -> None:
    (here / "in.csv").write_text("text,n\na,1\n")
    seqloom(*words, "--in", "in.csv").fails_with(2, message, lines=1)


def test_notes_about_tables_count_rows(seqloom: Any, here: Path) -> None:
    (here / "in.csv").write_text("text,n\na film,1\na zebra,2\n")
    result = seqloom("classify", "classifier", "--in", "in.csv", "--out", "out.csv")
    assert "note: the vocabulary lacks parts of 1 row; the first is row 2: 'zebra'\n" in result.err
