"""Detection of the task of files, and of the corpus config that reads them.

The name, the header, the columns and the content of a file are examined, in this order. The result
describes what was recognized, so that the user can correct it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.core.words import did_you_mean, shorten
from seqloom.data.corpora import find, load
from seqloom.data.corpora.parallel import is_language
from seqloom.data.corpus import Corpus, FilesConfig
from seqloom.data.files import EXTENSIONS, expand_home, read_nonblank, split_lines, without_compression
from seqloom.data.formats.arrow_tables import dataset_splits, is_dataset_folder
from seqloom.data.tables import TRANSLATIONS, Format, format_of, read_records, table_rows

SAMPLE_ROWS = 2000  # rows of a table that are examined
CONLL_ENDINGS = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes", ".conll03")
SPLIT_NAMES = {"train": "train", "training": "train", "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev"}
SPLIT_NAMES |= {"test": "test", "testing": "test", "eval": "test"}

# Lowercase column names that indicate the content of a column.
TEXTS = ("text", "sentence", "review", "content", "body", "message", "comment", "description", "tweet", "utterance")
LABELS = (
    *("label", "class", "category", "sentiment", "gold_label", "quality", "is_duplicate", "intent", "topic"),
    *("rating", "stars", "score", "similarity", "priority", "target", "tag", "labels", "y"),
)
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("#1 string", "#2 string")),
    *(("first", "second"), ("text1", "text2"), ("sentence_a", "sentence_b"), ("text_a", "text_b")),
    *(("sentence 1", "sentence 2"), ("sent_1", "sent_2"), ("question", "sentence"), ("left", "right")),
)
TRANSLATION_SIDES = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("src", "ref"))
CONTEXTS = ("context", "ctx", "startphrase", "sent1", "question", "premise", "prompt", "passage", *TEXTS)
OPTION = re.compile(r"(ending|option|choice|answer|solution|sol)[ _-]?([0-9]+|[a-e])")
OPTION_LISTS = ("options", "choices", "endings")
ANSWERS = ("answer", "label", "correct", "correct_answer", "gold", "answerkey")
OUTPUTS = ("output", "response", "completion", "answer")


@dataclass(frozen=True)
class Detected:
    """What files were recognized as."""

    task: str
    data: Mapping[str, object]  # the section `data` of a recipe
    reason: str  # for example: texts in the column "body", labels in the column "class"


@dataclass(frozen=True)
class ColumnProfile:
    """A column of a table and what its cells look like."""

    name: str
    number: int  # counted from 1
    cells: Sequence[object] = field(repr=False)

    @cached_property
    def texts(self) -> list[str]:
        return [str(cell).strip() for cell in self.cells if cell is not None and str(cell).strip()]

    @cached_property
    def distinct(self) -> int:
        return len(set(self.texts))

    @cached_property
    def words(self) -> float:
        """The mean number of words in a cell."""
        return sum(len(text.split()) for text in self.texts) / max(1, len(self.texts))

    @cached_property
    def is_numeric(self) -> bool:
        numbers = sum(re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None for text in self.texts)
        return bool(self.texts) and numbers >= 0.9 * len(self.texts)

    @property
    def is_label(self) -> bool:
        """Whether the cells repeat a few short values."""
        limit = min(200, max(2, len(self.texts) // 3), len(self.texts) // 2)
        return 2 <= self.distinct <= limit and self.words <= 4

    @property
    def is_score(self) -> bool:
        """Whether the cells are numbers on a scale, not classes."""
        return self.is_numeric and any("." in text.rstrip("0").rstrip(".") for text in self.texts)

    @property
    def is_text(self) -> bool:
        return not self.is_numeric and self.words >= 1 and self.distinct > len(self.texts) / 3

    @property
    def is_time(self) -> bool:
        """Whether the cells are dates, or numbers that increase."""
        if self.is_numeric:
            values = [float(text) for text in self.texts]
            return len(values) > 1 and all(a < b for a, b in pairwise(values))
        dates = sum(
            re.match(r"\d{4}-\d{2}(-\d{2})?([T ]\d{2}:|$)|\d{1,2}[./]\d{1,2}[./]\d{2,4}", t) is not None
            for t in self.texts
        )
        return bool(self.texts) and dates >= 0.9 * len(self.texts)


@dataclass(frozen=True)
class TableSample:
    """The first rows of a table."""

    path: Path
    form: Format
    has_header: bool
    columns: Sequence[ColumnProfile]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def find(self, *names: str) -> ColumnProfile | None:
        """Return the first column whose name, in any case, is among these."""
        by_name = {column.name.casefold(): column for column in self.columns}
        return next((by_name[name] for name in names if name in by_name), None)

    def key(self, column: ColumnProfile) -> str | int:
        """Return the name of a column for a recipe, or its number if the table has no header."""
        return column.name if self.has_header else column.number

    def describe(self, column: ColumnProfile) -> str:
        return f'the column "{shorten(column.name)}"' if self.has_header else f"column {column.number}"


def detect(paths: Sequence[Path], task: str | None = None, columns: Mapping[str, str] | None = None) -> Detected:
    """Recognize files. `task` restricts the result, and `columns` names columns by key: {"text": "body"}."""
    paths = [expand_home(path) for path in paths]
    for path in paths:
        if not path.exists():
            folder = "" if path.is_absolute() else " and the current folder"
            raise DataError(f"{path} does not exist. Check the name{folder}.")
    splits = assign_splits(paths)
    if splits is None and len(paths) == 2 and task in (None, "translate"):
        if paths[0].resolve() == paths[1].resolve():
            raise UsageError(f"A translator needs two different files; got {paths[0]} twice.")
        both = (str(paths[0]), str(paths[1]))
        return Detected("translate", {"corpus": "parallel", "train": both}, "two files aligned by line")
    if splits is None and len(paths) > 1:
        subject = "A recipe" if task is None else f"The task {task}"
        two = ", two files aligned by line" if task in (None, "translate") else ""
        raise UsageError(
            f"{subject} needs one file or folder{two}, or files whose names contain train, dev and test; "
            f"got {len(paths)} files."
        )
    files = splits or {"train": paths[0]}
    detected = _detect_file(files["train"], task, dict(columns or {}))
    if detected.task == "forecast":
        return detected
    return Detected(
        detected.task, {**detected.data, **{key: str(path) for key, path in files.items()}}, detected.reason
    )


def load_examples(path: Path, task: str, config: object, data: Mapping[str, object] | None = None) -> Corpus[Any]:
    """Load all examples of a file as the split "other".

    The file is read with the columns of `config`, the `data` section of a recipe, if it has them, and
    as recognized by `detect` otherwise; `data` replaces both.
    """
    everything: dict[str, Any] = {"train": str(path), "dev_fraction": 0.0, "test_fraction": 0.0}
    no_files: dict[str, Any] = {"dev": None, "test": None}
    configs: list[Callable[[], Any]] = []
    if data is not None:
        configs.append(lambda: find(str(data["corpus"])).Config(**{**data, **everything}))
    else:
        if isinstance(config, FilesConfig) and "train" in config.file_keys:
            configs.append(lambda: replace(config, **everything, **no_files))
        configs.append(lambda: _config_of(detect([path], task), everything))
    problem: SeqloomError | None = None
    for make in configs:
        try:
            corpus = load(make(), check=False)
        except (DataError, UsageError) as error:
            problem = problem or error
            continue
        examples = corpus.split("train")
        return replace(corpus, name=str(path), splits={"train": examples, "other": examples})
    raise problem or DataError(f"{path} has no examples.")


def _config_of(detected: Detected, values: Mapping[str, object]) -> Any:
    return find(str(detected.data["corpus"])).Config(**{**detected.data, **values})


def assign_splits(paths: Sequence[Path]) -> dict[str, Path] | None:
    """Return the files of train, dev and test, recognized by their names or those in a folder; else None."""
    if len(paths) == 1:
        if not paths[0].is_dir() or is_dataset_folder(paths[0]):
            return None
        if folders := dataset_splits(paths[0]):
            paths = list(folders.values())
        else:
            paths = [path for path in sorted(paths[0].iterdir()) if path.is_file() and format_of(path)]
            if any(path.name.endswith(EXTENSIONS) for path in paths):
                return None
    splits: dict[str, Path] = {}
    for path in paths:
        words = re.split(r"[^a-z]+", without_compression(path).lower())
        named = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        if len(named) == 1 and not splits.keys() & named:
            splits[named.pop()] = path
    return splits if "train" in splits and len(splits) == len(paths) else None


def _detect_file(path: Path, task: str | None, columns: dict[str, str]) -> Detected:
    name = without_compression(path).lower()
    form = format_of(path)
    if path.is_dir() and form is None:
        return _text(path) if task in (None, "language-model") else _refuse(path, task)
    if task in ("language-model", "ngram", "hmm"):
        return _text(path)
    if name.endswith(CONLL_ENDINGS) or task == "tag":
        return _tagged(path)
    if form in TRANSLATIONS:
        return Detected("translate", {"corpus": "parallel"}, f"a {form.upper()} file with two languages")
    if name.endswith(".json") and task in (None, "answer") and _is_squad(path):
        return Detected("answer", {"corpus": "squad-files"}, "questions with answers in SQuAD format")
    if (form is None or name.endswith(".txt")) and not columns:
        if task is None:
            return _tagged(path) if _looks_tagged(path) else _text(path)
        form = form or "tsv"
    return _detect_table(profile_table(path, form or "tsv", columns), task, columns)


def _text(path: Path) -> Detected:
    return Detected("language-model", {"corpus": "text"}, "plain text")


def _tagged(path: Path) -> Detected:
    is_conllu = without_compression(path).lower().endswith(".conllu")
    kind = "CoNLL-U" if is_conllu else "one word per line with its tag in the last column"
    return Detected(
        "tag", {"corpus": "conll", "format": "conllu" if is_conllu else "conll"}, f"tagged sentences, {kind}"
    )


def _is_squad(path: Path) -> bool:
    try:
        content = json.loads(read_nonblank(path))
    except ValueError:
        return False
    return isinstance(content, dict) and isinstance(content.get("data"), list)


def _looks_tagged(path: Path) -> bool:
    """Whether most lines are a word and a tag in columns, and blank lines separate sentences."""
    lines = split_lines(read_nonblank(path))[: 5 * SAMPLE_ROWS]
    rows = [line.split("\t") if "\t" in line else line.split() for line in lines if line.strip()]
    widths = {len(row) for row in rows if row[0] != "-DOCSTART-"}
    if len(widths) != 1 or not 2 <= widths.pop() <= 12 or len(rows) == len(lines):
        return False
    tags = {row[-1] for row in rows}
    return len(tags) <= max(3, len(rows) // 5) and all(len(row[0].split()) == 1 for row in rows)


# --- tables -----------------------------------------------------------------------------------------------------------


def profile_table(path: Path, form: Format, columns: Mapping[str, str]) -> TableSample:
    """Read the first rows of a table and determine whether its first row names the columns."""
    if form not in ("tsv", "csv"):
        records = [cells for _, cells in read_records(path, form)[:SAMPLE_ROWS]]
        names = list(dict.fromkeys(name for cells in records for name in cells))
        profiles = [ColumnProfile(name, i, [cells.get(name) for cells in records]) for i, name in enumerate(names, 1)]
        return TableSample(path, form, True, profiles)
    rows = table_rows(path, form, SAMPLE_ROWS)
    width = len(rows[0])
    cells = [[row[index] if index < len(row) else "" for row in rows] for index in range(width)]
    has_header = _has_header(rows, cells, columns)
    names = [cell.strip() for cell in rows[0]] if has_header else [str(index + 1) for index in range(width)]
    return TableSample(
        path,
        form,
        has_header,
        [
            ColumnProfile(name, i, column[has_header:])
            for i, (name, column) in enumerate(zip(names, cells, strict=True), 1)
        ],
    )


def _has_header(rows: Sequence[Sequence[str]], cells: Sequence[Sequence[str]], columns: Mapping[str, str]) -> bool:
    first = [cell.strip() for cell in rows[0]]
    if any(name in first for name in columns.values()):
        return True
    if len(set(first)) < len(first) or not all(first) or any(len(cell.split()) > 3 for cell in first):
        return False
    known = {
        *TEXTS,
        *LABELS,
        *CONTEXTS,
        *OUTPUTS,
        *ANSWERS,
        *(name for pair in (*PAIRS, *TRANSLATION_SIDES) for name in pair),
    }
    if {cell.casefold() for cell in first} & known or (len(first) >= 2 and all(map(is_language, first[:2]))):
        return True
    # The name of a column of numbers is not a number, and that of a column of labels is not one of them.
    below = [ColumnProfile("", 0, column[1:]) for column in cells]
    if any(column.is_numeric for column in below):
        return not any(ColumnProfile("", 0, [cell]).is_numeric for cell in first)
    return any(column.is_label and cell not in column.texts for column, cell in zip(below, first, strict=True))


def _detect_table(table: TableSample, task: str | None, columns: Mapping[str, str]) -> Detected:
    """Try the kinds of tables, the most specific first."""
    for key, name in columns.items():
        if name not in table.names and not (name.isascii() and name.isdigit() and int(name) <= len(table.names)):
            raise DataError(f"{table.path} has no column {name!r} for --{key}: {did_you_mean(name, table.names)}.")
    for kind, recognize in RECOGNIZERS:
        if task in (None, kind) and (detected := recognize(table, columns)) is not None:
            return detected
    return _refuse(table.path, task, table)


def _refuse(path: Path, task: str | None, table: TableSample | None = None) -> Detected:
    if task == "translate" and table is not None and table.form == "tsv":
        return Detected("translate", {"corpus": "parallel"}, "a table")  # its reader reports the problem
    kinds = f"the task {task}" if task else "any task"
    listed = "" if table is None else f" Its columns: {', '.join(shorten(name) for name in table.names)}."
    raise UsageError(
        f"{path} was not recognized as data for {kinds}.{listed} Choose a task with --task, and name the columns of a "
        "table with --text and --label."
    )


def _instructions(table: TableSample, columns: Mapping[str, str]) -> Detected | None:
    instruction, output = table.find("instruction", "prompt"), table.find(*OUTPUTS)
    if instruction is None or output is None or table.form not in ("jsonl", "parquet"):
        return None
    data = {"corpus": "instructions", "instruction": instruction.name, "output": output.name}
    return Detected(
        "instruct", data, f"instructions in {table.describe(instruction)}, answers in {table.describe(output)}"
    )


def _choices(table: TableSample, columns: Mapping[str, str]) -> Detected | None:
    text, answer, listed = table.find(*CONTEXTS), table.find(*ANSWERS), table.find(*OPTION_LISTS)
    options = [column for column in table.columns if OPTION.fullmatch(column.name.casefold())]
    if text is None or answer is None or (listed is None and len(options) < 2):
        return None
    if listed is not None and not all(isinstance(cell, list) for cell in listed.cells):
        return None
    several = listed.name if listed is not None else tuple(column.name for column in options if column is not answer)
    names = {str(value) for value in answer.texts}
    base = 1 if "0" not in names and str(len(options)) in names else 0
    data = {"corpus": "choices", "text": text.name, "options": several, "answer": answer.name, "index_base": base}
    return Detected("choice", data, f"multiple choice: {table.describe(text)}, answers in {table.describe(answer)}")


def _pairs(table: TableSample, columns: Mapping[str, str]) -> Detected | None:
    sides: Sequence[ColumnProfile | None] = (None, None)
    for names in PAIRS:
        if all(found := [table.find(name) for name in names]):
            sides = found
            break
    others = [column for column in table.columns if column not in sides]
    label = _given(table, columns, "label") or table.find(*LABELS)
    if sides[0] is None and not table.has_header:  # two columns of text and one of labels
        texts = [column for column in table.columns if column.is_text]
        labels = [column for column in table.columns if column.is_label or column.is_score]
        if len(texts) == 2 and len(labels) == 1 and len(table.columns) == 3:
            sides, label = texts, labels[0]
    if label is None or label in sides:
        label = next((column for column in others if column.is_label or column.is_score), None)
    first, second = sides
    if first is None or second is None or label is None:
        return None
    data = {
        "corpus": "sentence-pairs",
        "first": table.key(first),
        "second": table.key(second),
        "label": table.key(label),
    }
    kind = "scores" if label.is_score else "labels"
    return Detected(
        "pair",
        data,
        f"sentence pairs in {table.describe(first)} and {table.describe(second)}, {kind} in {table.describe(label)}",
    )


def _translations(table: TableSample, columns: Mapping[str, str]) -> Detected | None:
    pairs = [(column, column.name.rpartition(".")[2]) for column in table.columns]
    languages = [column for column, name in pairs if is_language(name) and column.is_text]
    sides: Sequence[ColumnProfile | None] = languages if table.has_header and len(languages) == 2 else (None, None)
    for names in TRANSLATION_SIDES:
        if sides[0] is None and all(found := [table.find(name) for name in names]):
            sides = found
    texts = [column for column in table.columns if column.is_text]
    if sides[0] is None and not table.has_header and len(texts) >= 2 and texts[0].number == 1 and texts[1].number == 2:
        sides = texts[:2]
    first, second = sides
    if first is None or second is None:
        return None
    data = {"corpus": "parallel", "columns": (table.key(first), table.key(second))}
    return Detected(
        "translate", data, f"sentence pairs to translate, from {table.describe(first)} to {table.describe(second)}"
    )


def _labelled_by_name(table: TableSample, columns: Mapping[str, str]) -> Detected | None:
    """Recognize texts and labels whose columns have the usual names, or names set by the user."""
    is_named = [key in columns or table.find(*names) for key, names in (("text", TEXTS), ("label", LABELS))]
    return _labelled(table, columns) if table.has_header and all(is_named) else None


def _labelled(table: TableSample, columns: Mapping[str, str]) -> Detected | None:
    text = _given(table, columns, "text") or table.find(*TEXTS)
    label = _given(table, columns, "label") or table.find(
        *(name for name in LABELS if text is None or name != text.name)
    )
    if label is None:
        label = next((column for column in reversed(table.columns) if column is not text and column.is_label), None)
    if text is None:
        wordy = [column for column in table.columns if column is not label and column.is_text]
        text = max(wordy, key=lambda column: column.words, default=None)
    if text is None or label is None or (label.distinct > len(label.texts) / 2 and "label" not in columns):
        return None
    data = {"corpus": "table", "text": table.key(text), "label": table.key(label)}
    return Detected("classify", data, f"texts in {table.describe(text)}, labels in {table.describe(label)}")


def _series(table: TableSample, columns: Mapping[str, str]) -> Detected | None:
    time, *values = table.columns
    if not table.has_header or not time.is_time or not values or not any(column.is_numeric for column in values):
        return None
    data = {"corpus": "series-file", "file": str(table.path)}
    return Detected("forecast", data, f"a series with times in {table.describe(time)}")


def _series_rows(table: TableSample, columns: Mapping[str, str]) -> Detected | None:
    values = [column for column in table.columns if column.is_numeric]
    labels = [table.columns[0], table.columns[-1]]
    label = next((column for column in labels if column.is_label and not column.is_score), None)
    if label is None or len(table.columns) < 9 or len(values) < len(table.columns) - 1:
        return None
    data = {"corpus": "series-rows", "label": table.key(label)}
    return Detected("series-classify", data, f"a series in every row, labels in {table.describe(label)}")


def _given(table: TableSample, columns: Mapping[str, str], key: str) -> ColumnProfile | None:
    """Return the column that the user named, by name or number."""
    if key not in columns:
        return None
    return next((c for c in table.columns if columns[key] in (c.name, str(c.number))), None)


RECOGNIZERS: Sequence[tuple[str, Callable[[TableSample, Mapping[str, str]], Detected | None]]] = (
    ("instruct", _instructions),
    ("choice", _choices),
    ("series-classify", _series_rows),
    ("forecast", _series),
    ("pair", _pairs),
    ("classify", _labelled_by_name),
    ("translate", _translations),
    ("classify", _labelled),
)
