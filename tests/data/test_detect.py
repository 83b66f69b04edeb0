"""Recognition of files by name, header and content."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from seqloom.config import to_mapping
from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.data.corpora import find, load
from seqloom.data.detect import detect
from seqloom.data.table_profile import NamedColumns

WORDS = ["the", "cat", "sat", "on", "a", "mat", "near", "some", "old", "green", "house", "while", "rain", "fell"]


def sentence(generator: random.Random) -> str:
    return " ".join(generator.choices(WORDS, k=generator.randint(5, 12)))


def table(path: Path, header: str | None, rows: Sequence[Sequence[object]], separator: str = "\t") -> Path:
    lines = [header] if header else []
    lines += [separator.join(map(str, row)) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def generator() -> random.Random:
    return random.Random(5)


def check(path: Path | list[Path], task: str, **data: object) -> None:
    """Check the task and the given keys, and that the corpus can be loaded."""
    detected = detect(path if isinstance(path, list) else [path])
    assert detected.task == task, detected
    assert {key: detected.data[key] for key in data} == data
    module = find(str(detected.data["corpus"]))
    corpus = load(module.Config(**detected.data))
    assert len(corpus.split("train")) > 0
    assert to_mapping(module.Config(**detected.data))


@pytest.mark.parametrize("header", ["text\tlabel", "label\ttext", "id\tsentence\tcategory", None])
def test_labelled_texts_are_detected_for_classification(
    tmp_path: Path, generator: random.Random, header: str | None
) -> None:
    order = (header or "text\tlabel").split("\t")
    cells = {"text": 0, "sentence": 0, "label": 1, "category": 1, "id": 2}
    rows = []
    for i in range(60):
        values = [sentence(generator) + f" {i}", generator.choice(["good", "bad"]), i]
        rows.append([values[cells[name]] for name in order])
    path = table(tmp_path / "a.tsv", header, rows)
    text, label = (next(name for name in order if cells[name] == index) for index in (0, 1))
    check(path, "classify", text=text if header else 1, label=label if header else 2)


def test_semicolons_and_multi_line_cells_are_read(tmp_path: Path, generator: random.Random) -> None:
    rows = [[f'"{sentence(generator)} {i},\nsecond ""line"""', "ab"[i % 2]] for i in range(40)]
    check(table(tmp_path / "a.csv", "Message;Priority", rows, ";"), "classify", text="Message", label="Priority")


def test_mrpc_columns_are_detected_as_sentence_pairs(tmp_path: Path, generator: random.Random) -> None:
    rows = [[i % 2, 2 * i, 2 * i + 1, f"{sentence(generator)} {i}", f"{sentence(generator)} {i}"] for i in range(60)]
    path = table(tmp_path / "msr.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", rows)
    check(path, "pair", first="#1 String", second="#2 String", label="Quality")


GLUE = {  # header, a row of the number i and two sentences, and the columns of the texts and the label
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
        "\tsentence1\tsentence2\tlabel1\tgold_label",
        lambda i, a, b: [i, 9 * i, f"{i}n", "fiction", f"( {a} )", f"( {b} )", a, b, a, b, "xyz"[i % 3], "xyz"[i % 3]],
        ("sentence1", "sentence2", "gold_label"),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        lambda i, a, b: [i, 2 * i, 2 * i + 1, f'{a} "', b, i % 2],  # a quotation mark is an ordinary character
        ("question1", "question2", "is_duplicate"),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel",
        lambda i, a, b: [i, a, b, ["entailment", "not_entailment"][i % 2]],
        ("question", "sentence", "label"),
    ),
}


@pytest.mark.parametrize("name", GLUE)
def test_pairs_of_glue_are_detected_by_name(tmp_path: Path, generator: random.Random, name: str) -> None:
    """The index in the first column, which increases like a time, does not make the table a series."""
    header, row, (first, second, label) = GLUE[name]
    rows = [row(i, f"{sentence(generator)} {i}", f"{sentence(generator)} {i}") for i in range(60)]
    path = table(tmp_path / f"{name}.tsv", header, rows)
    check(path, "pair", first=first, second=second, label=label)


def test_numbers_with_the_names_of_pairs_are_a_series(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "time,first,second,score", [[i, i % 7, i % 5, i % 3] for i in range(60)], ",")
    assert detect([path]).task == "forecast"


def test_text_file_of_mrpc_is_detected_as_sentence_pairs(tmp_path: Path, generator: random.Random) -> None:
    rows = [[i % 2, 2 * i, 2 * i + 1, f"{sentence(generator)} {i}", f"{sentence(generator)} {i}"] for i in range(60)]
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    check(table(tmp_path / "msr.txt", header, rows), "pair", first="#1 String", second="#2 String", label="Quality")
    plain = table(tmp_path / "plain.txt", "Quality and sentence1, a text", [[sentence(generator)] for _ in range(60)])
    assert detect([plain]).task == "language-model"


def test_label_of_cola_is_the_column_without_gaps(tmp_path: Path, generator: random.Random) -> None:
    """The third column of CoLA marks some of the unacceptable sentences, so most of its cells are empty."""
    rows = [
        ["ab12", int(i % 4 > 0), "" if i % 4 else "*?"[i % 8 == 0], f"{sentence(generator)} {i}"] for i in range(80)
    ]
    check(table(tmp_path / "cola.tsv", None, rows), "classify", text=4, label=2)


def test_pairs_with_scores_are_detected(tmp_path: Path, generator: random.Random) -> None:
    rows = [[f"{sentence(generator)} {i}", f"{sentence(generator)} {i}", i / 10 % 5] for i in range(60)]
    detected = detect([table(tmp_path / "sts.tsv", "sentence1\tsentence2\tscore", rows)])
    assert detected.task == "pair"
    assert "scores" in detected.reason
    assert detect([table(tmp_path / "bare.tsv", None, rows)]).task == "pair"


@pytest.mark.parametrize("header", ["en\tde", "source\ttarget", None])
def test_two_text_columns_are_detected_as_translations(
    tmp_path: Path, generator: random.Random, header: str | None
) -> None:
    rows = [[f"{sentence(generator)} {i}", f"{sentence(generator)} {i}"] for i in range(60)]
    path = table(tmp_path / "a.tsv", header, rows)
    check(path, "translate", columns=tuple(header.split("\t")) if header else (1, 2))


def test_two_files_are_detected_as_translations(tmp_path: Path, generator: random.Random) -> None:
    paths = [
        table(tmp_path / f"a.{tag}", None, [[f"{sentence(generator)} {i}"] for i in range(60)]) for tag in ("en", "de")
    ]
    check(paths, "translate")
    with pytest.raises(UsageError, match="two different files"):
        detect([paths[0], paths[0]])


def test_nested_json_columns_are_detected_as_translations(tmp_path: Path, generator: random.Random) -> None:
    rows = [
        {"translation": {"en": f"{sentence(generator)} {i}", "ro": f"{sentence(generator)} {i}"}} for i in range(60)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    check(path, "translate", columns=("translation.en", "translation.ro"))


def test_prompts_and_completions_are_detected_as_instructions(tmp_path: Path, generator: random.Random) -> None:
    rows = [{"prompt": f"{sentence(generator)} {i}", "completion": sentence(generator)} for i in range(40)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    check(path, "instruct", instruction="prompt", output="completion")


def test_options_and_answer_are_detected_as_multiple_choice(tmp_path: Path, generator: random.Random) -> None:
    rows = [[f"{sentence(generator)} {i}", *(sentence(generator) for _ in range(4)), i % 4] for i in range(40)]
    path = table(tmp_path / "a.csv", "startphrase,ending0,ending1,ending2,ending3,label", rows, ",")
    check(path, "choice", text="startphrase", options=("ending0", "ending1", "ending2", "ending3"), index_base=0)
    path = tmp_path / "b.jsonl"
    objects = [{"question": row[0], "choices": row[1:5], "answer": row[5]} for row in rows]
    path.write_text("".join(json.dumps(item) + "\n" for item in objects))
    check(path, "choice", text="question", options="choices")


@pytest.mark.parametrize("name", ["a.conll", "a.txt"])
def test_tagged_words_are_detected(tmp_path: Path, generator: random.Random, name: str) -> None:
    lines = []
    for _ in range(60):
        lines += [f"{word} {generator.choice(['O', 'B-PER', 'O', 'O'])}" for word in sentence(generator).split()] + [""]
    (tmp_path / name).write_text("\n".join(lines))
    check(tmp_path / name, "tag", corpus="conll")


def write_tagged(path: Path, generator: random.Random, sentences: int = 60) -> Path:
    lines = []
    for _ in range(sentences):
        lines += [f"{word}\t{generator.choice(['O', 'B-PER', 'O', 'O'])}" for word in sentence(generator).split()] + [
            ""
        ]
    path.write_text("\n".join(lines))
    return path


def test_folder_of_tagged_sentences_requires_the_names_of_the_splits(tmp_path: Path, generator: random.Random) -> None:
    files = [write_tagged(tmp_path / name, generator) for name in ("a.txt", "b.txt", "c.txt")]
    for task in (None, "tag"):
        with pytest.raises(
            UsageError, match=r"tagged sentences in 3 text files.* init .*a.txt --dev .*b.txt --test .*c.txt"
        ):
            detect([tmp_path], task)
    assert detect([tmp_path], "language-model").task == "language-model"
    held_out = {"dev": [files[1]], "test": [files[2]]}
    detected = detect(files[:1], held_out=held_out)
    assert detected.task == "tag" and [detected.data[split] for split in ("train", "dev", "test")] == list(
        map(str, files)
    )
    for number, name in enumerate(("ner-train.txt", "ner-dev.txt", "ner-test.txt")):
        files[number].rename(tmp_path / name)
    (tmp_path / "README.txt").write_text("Names of people.")
    check(tmp_path, "tag", dev=str(tmp_path / "ner-dev.txt"), test=str(tmp_path / "ner-test.txt"))


def test_files_of_dev_and_test_must_match_the_training_data(tmp_path: Path, generator: random.Random) -> None:
    file = table(tmp_path / "train.tsv", "text\tlabel", [[sentence(generator), i % 2] for i in range(40)])
    with pytest.raises(UsageError, match="--dev must be given once; got 2 files"):
        detect([file], held_out={"dev": [file, file]})
    sales = table(tmp_path / "sales.csv", "date,sales", [[f"2024-01-{day:02}", day] for day in range(1, 29)], ",")
    with pytest.raises(UsageError, match="--test requires files of examples; dev and test are parts of a series"):
        detect([sales], held_out={"test": [sales]})
    with pytest.raises(UsageError, match="--dev cannot be combined with a dev file that is recognized by its name"):
        dev = table(tmp_path / "dev.tsv", "text\tlabel", [[sentence(generator), i % 2] for i in range(40)])
        detect([file, dev], held_out={"dev": [file, file]})


@pytest.mark.parametrize("name", ["msr_paraphrase_train.txt", "pairs"])
def test_tables_in_text_files_are_detected(tmp_path: Path, generator: random.Random, name: str) -> None:
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = [[i % 2, i, 100 + i, sentence(generator) + ' "', sentence(generator)] for i in range(60)]
    path = table(tmp_path / name, header, rows)
    assert detect([path]).data["first"] == "#1 String" and detect([path]).task == "pair"
    if name.endswith(".txt"):
        check(path, "pair", second="#2 String", label="Quality")
        test = table(tmp_path / "msr_paraphrase_test.txt", header, rows[:20])
        check(tmp_path, "pair", train=str(path), test=str(test))
        table(tmp_path / "answers.csv", "a,b", [["x", "y"]], ",")
        with pytest.raises(UsageError, match=r"contains tables in 2 text files. Name the files of train, dev and test"):
            detect([tmp_path])


def test_book_folder_with_an_image_is_a_folder_of_texts(tmp_path: Path, generator: random.Random) -> None:
    (tmp_path / "plays").mkdir()
    for name in ("plays/one.txt", "Two.TXT"):
        table(tmp_path / name, None, [[sentence(generator)] for _ in range(50)])
    (tmp_path / "cover.jpg").write_bytes(b"\xff\xd8\xff")
    check(tmp_path, "language-model", corpus="text")
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(b"\xff\xd8\xff")
    assert detect([tmp_path]).task == "classify-images"


def test_other_label_columns_and_directions_are_named(tmp_path: Path, generator: random.Random) -> None:
    rows = [[i, sentence(generator), "ab"[i % 2], "xyz"[i % 3]] for i in range(60)]
    detected = detect([table(tmp_path / "a.tsv", "id\tbody\tqueue\tpriority", rows)])
    assert detected.data["label"] == "priority" and detected.alternatives == ("queue",)
    memory = tmp_path / "a.tmx"
    unit = '<tu><tuv xml:lang="en"><seg>owl</seg></tuv><tuv xml:lang="de"><seg>Eule</seg></tuv></tu>'
    memory.write_text(f'<tmx version="1.4"><header srclang="en"/><body>{unit}</body></tmx>')
    assert detect([memory]).alternatives == ("de", "en") and detect([memory]).reason == "a TMX file, from en to de"
    with pytest.raises(DataError, match="has no language 'fr' for --label; its languages are en, de"):
        detect([memory], columns=NamedColumns(("en",), "fr"))
    with pytest.raises(UsageError, match="Name the source language with --column and the target language with --label"):
        detect([memory], columns=NamedColumns(("en",)))


def test_text_files_and_folders_are_detected_for_language_models(tmp_path: Path, generator: random.Random) -> None:
    (tmp_path / "books").mkdir()
    for i in range(3):
        table(tmp_path / "books" / f"{i}.txt", None, [[sentence(generator)] for _ in range(100)])
    check(tmp_path / "books", "language-model", corpus="text")
    check(tmp_path / "books" / "0.txt", "language-model", corpus="text")


def test_times_and_numbers_are_detected_as_series(tmp_path: Path) -> None:
    rows = [[f"2024-{1 + i // 28:02d}-{1 + i % 28:02d}", i * 2.5, i % 7] for i in range(84)]
    detected = detect([table(tmp_path / "sales.csv", "date,sales,visits", rows, ",")])
    assert (detected.task, detected.data["corpus"]) == ("forecast", "series-file")


def test_label_and_numbers_are_detected_as_labelled_series(tmp_path: Path, generator: random.Random) -> None:
    rows = [[1 + i % 3, *(round(generator.random(), 3) for _ in range(20))] for i in range(60)]
    check(table(tmp_path / "ucr.tsv", None, rows), "series-classify", label=1)


def test_splits_are_detected_from_file_names(tmp_path: Path, generator: random.Random) -> None:
    for name in ("train", "dev", "test"):
        rows = [[f"{sentence(generator)} {name} {i}", "ab"[i % 2]] for i in range(40)]
        table(tmp_path / f"sst-{name}.tsv", "sentence\tlabel", rows)
    paths = [tmp_path / f"sst-{name}.tsv" for name in ("train", "dev", "test")]
    assert detect(paths).data["dev"] == str(paths[1])
    assert detect([tmp_path]).data["test"] == str(paths[2])


def test_task_and_columns_of_the_user_are_used(tmp_path: Path, generator: random.Random) -> None:
    rows = [[f"{sentence(generator)} {i}", f"{sentence(generator)} {i}", "ab"[i % 2]] for i in range(60)]
    path = table(tmp_path / "a.tsv", "en\tde\tgroup", rows)
    assert detect([path]).task == "translate"
    detected = detect([path], columns=NamedColumns(("de",), "group"))
    assert (detected.task, detected.data["text"], detected.data["label"]) == ("classify", "de", "group")
    assert detect([path], task="language-model").task == "language-model"


@pytest.mark.parametrize(
    ("content", "task", "columns", "message"),
    [
        ("a,b\n1,2\n", None, NamedColumns(), "was not recognized as data for any task. Its columns: a, b"),
        ("text,label\nx y,1\nz,2\n", "pair", NamedColumns(), "was not recognized as data for the task pair"),
        (
            "text,label\nx y,1\nz,2\n",
            None,
            NamedColumns(("texts",)),
            "no column 'texts' for --column: did you mean text",
        ),
        ("", None, NamedColumns(), "is empty"),
    ],
)
def test_unknown_table_is_rejected(
    tmp_path: Path, content: str, task: str | None, columns: NamedColumns, message: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(SeqloomError, match=message):
        detect([tmp_path / "a.csv"], task, columns)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        detect([tmp_path / "a.csv"])


def test_scores_are_not_stratified(tmp_path: Path, generator: random.Random) -> None:
    """Scores hardly ever repeat. A split that is stratified by score would therefore hold out no pairs."""
    rows = [[f"{sentence(generator)} {i}", f"{sentence(generator)} {i}", i / 100 + 0.001] for i in range(400)]
    detected = detect([table(tmp_path / "sts.tsv", "sentence1\tsentence2\tscore", rows)])
    corpus = load(find("sentence-pairs").Config(**detected.data))
    assert 35 <= len(corpus.split("dev")) <= 45


@pytest.mark.parametrize("header", ["note\turgency", None])
def test_unfamiliar_header_is_recognized(tmp_path: Path, generator: random.Random, header: str | None) -> None:
    rows = [[f"{sentence(generator)} {i}", generator.choice(["high", "low"])] for i in range(60)]
    check(table(tmp_path / "a.tsv", header, rows), "classify", label="urgency" if header else 2)


@pytest.mark.parametrize("count", [2, 3])
def test_several_translation_memories_need_a_folder(tmp_path: Path, count: int) -> None:
    paths = [tmp_path / f"{number}.po" for number in range(count)]
    for path in paths:
        path.write_text('msgid "cat"\nmsgstr "Katze"\n')
    with pytest.raises(UsageError, match=f"Name a folder to train on several translation memories; got {count} files"):
        detect(paths)
    assert detect([tmp_path]).reason == "a folder of translation memories, from en to target"


def test_compiled_catalogue_is_reported(tmp_path: Path) -> None:
    (tmp_path / "vim.mo").write_bytes(b"\xde\x12\x04\x95\0\0")
    with pytest.raises(DataError, match=r"is a compiled message catalogue. Convert it: msgunfmt .* > vim.po"):
        detect([tmp_path / "vim.mo"])
