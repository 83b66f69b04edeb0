"""Detection of the task of files, and of the corpus config that reads them.

The name, the header, the columns and the content of a file are examined, in this order. The result
describes what was recognized, so that the user can correct it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import did_you_mean, format_count, shorten
from seqloom.data.corpora import find
from seqloom.data.corpora.parallel import is_language
from seqloom.data.corpus import FilesConfig
from seqloom.data.detect_images import (
    described_task,
    has_images,
    image_folder,
    image_splits,
    image_table,
    recognize_captions,
    recognize_labelled_images,
    recognize_visual_questions,
)
from seqloom.data.detect_texts import check_texts_of_folder, is_image_folder, looks_tabular, looks_tagged
from seqloom.data.detected import SPLIT_NAMES, ChosenColumns, Detected
from seqloom.data.files import expand_home, is_text, read_nonblank, text_files, without_compression
from seqloom.data.formats.arrow_tables import dataset_splits, is_dataset_folder
from seqloom.data.label_columns import are_flags, are_lists, are_parallel, find_separator
from seqloom.data.table_profile import (
    ANSWERS,
    CONTEXTS,
    LABEL_SETS,
    LABELS,
    OPTION,
    OPTION_LISTS,
    OUTPUTS,
    PAIRS,
    TEXTS,
    TRANSLATION_SIDES,
    ColumnProfile,
    NamedColumns,
    TableSample,
    names_labelled_pairs,
    profile_table,
    text_column,
)
from seqloom.data.tables import TRANSLATIONS, Format, column_names, find_language, format_of

CONLL_ENDINGS = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes", ".conll03")

TASKS = {  # the form of the examples → the task that `detect` recognizes
    "text": "language-model",
    "parallel": "translate",
    "text-classification": "classify",
    "token-classification": "tag",
    "sentence-pair": "pair",
    "multiple-choice": "choice",
    "question-answering": "answer",
    "instructions": "instruct",
    "series": "forecast",
    "series-labelled": "series-classify",
    "image-classification": "classify-images",
    "image-captioning": "caption",
    "visual-question-answering": "vqa",
}
TRANSLATION_KINDS = {"tmx": "a TMX", "xliff": "an XLIFF", "po": "a PO"}
NOTICES = r"readme|licen[cs]e|copying|about"  # names of files that are not data
TEXT_TASKS = ("language-model", "ngram", "hmm", "word-vectors")  # tasks that read plain text


def detect(
    paths: Sequence[Path],
    task: str | None = None,
    columns: NamedColumns | None = None,
    multi_label: bool | None = None,
    held_out: Mapping[str, Sequence[Path]] | None = None,
) -> Detected:
    """Recognize the task of files; `task` and `columns` restrict the result.

    Without `task`, one named input means labelled texts, two inputs mean pairs, and more inputs mean a text with
    options. `multi_label` states whether a text has several labels. `held_out` contains the files of dev and test.
    """
    if held_out:
        return add_held_out(detect(paths, task, columns, multi_label), len(paths), held_out)
    paths = [expand_home(path) for path in paths]
    for path in paths:
        if not path.exists():
            folder = "" if path.is_absolute() else " and the current folder"
            raise DataError(f"{path} does not exist. Check the name{folder}.")
    if len(paths) == 1 and (table := image_table(paths[0], task)) is not None:
        paths = [table]
    if (pictures := image_folder(paths)) is not None:
        tables = [path for path in paths if path != pictures]
        detected = detect(tables, task or described_task(tables[0]), columns, multi_label)
        if detected.data["corpus"] not in ("caption-files", "vqa-files"):
            raise UsageError(f"The task {task} reads a folder of images or a table, but not both.")
        return replace(detected, data={**detected.data, "folder": str(pictures)})
    splits = assign_splits(paths)
    if splits is None and len(paths) > 1 and all(format_of(path) in TRANSLATIONS for path in paths):
        raise UsageError(f"Name a folder to train on several translation memories; got {len(paths)} files.")
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
    detected = _detect_file(files["train"], task, columns or NamedColumns(), multi_label)
    if detected.task == "forecast":
        return detected
    return replace(detected, data={**detected.data, **{key: str(path) for key, path in files.items()}})


def add_held_out(detected: Detected, count: int, held_out: Mapping[str, Sequence[Path]]) -> Detected:
    """Add the files of dev and test to the data of train, which has `count` files or folders."""
    config = find(str(detected.data["corpus"])).Config
    for split, files in held_out.items():
        if not issubclass(config, FilesConfig) or split not in config.file_keys:
            raise UsageError(f"--{split} requires files of examples; dev and test are parts of a series.")
        if split in detected.data:
            raise UsageError(f"--{split} cannot be combined with a {split} file that is recognized by its name.")
        if len(files) != count:
            each = "once" if count == 1 else f"{count} times, for each training file"
            raise UsageError(f"--{split} must be given {each}; got {format_count(len(files), 'file')}.")
    names = {split: tuple(map(str, map(expand_home, files))) for split, files in held_out.items()}
    more = {split: files[0] if len(files) == 1 else files for split, files in names.items()}
    return replace(detected, data={**detected.data, **more})


def first_text(paths: Sequence[Path], task: str | None = None) -> Path:
    """Return the first file that contains text, in the encoding of all files."""
    first = next((path for path in map(expand_home, paths) if path.is_file()), expand_home(paths[0]))
    return image_table(first, task) or first


def assign_splits(paths: Sequence[Path]) -> dict[str, Path] | None:
    """Return the files of train, dev and test, recognized by their names or the names in a folder; otherwise None."""
    if len(paths) == 1:
        if not paths[0].is_dir() or is_dataset_folder(paths[0]):
            return None
        if folders := dataset_splits(paths[0]):
            paths = list(folders.values())
        elif image_folders := image_splits(paths[0]):
            return image_folders
        else:
            paths = [path for path in sorted(paths[0].iterdir()) if path.is_file() and format_of(path)]
            if any(is_text(path) for path in paths) and not set(paths).issuperset(text_files(paths[0].parent)):
                return None  # a folder of texts with subfolders
            paths = [path for path in paths if not re.match(NOTICES, path.name.lower())]
    splits: dict[str, Path] = {}
    for path in paths:
        words = re.split(r"[^a-z]+", without_compression(path).lower())
        named = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        if len(named) == 1 and not splits.keys() & named:
            splits[named.pop()] = path
    return splits if "train" in splits and len(splits) == len(paths) else None


def _detect_file(path: Path, task: str | None, columns: NamedColumns, multi_label: bool | None) -> Detected:
    name = without_compression(path).lower()
    form = format_of(path)
    if name.endswith(".mo"):
        po = path.with_suffix(".po").name
        raise DataError(f"{path} is a compiled message catalogue. Convert it: msgunfmt {path} > {po} (gettext).")
    if path.is_dir() and form is None:
        if (task is None and is_image_folder(path)) or (task == "classify-images" and has_images(path)):
            return Detected("classify-images", {"corpus": "image-files"}, "images, with a subfolder for each label")
        if task in (None, "tag"):
            check_texts_of_folder(path)
        return _text(path, columns, task) if task in (None, *TEXT_TASKS) else _refuse(path, task)
    if task in TEXT_TASKS:
        return _text(path, columns, task)
    if name.endswith(CONLL_ENDINGS) or task == "tag":
        return _tagged(path, columns)
    if form in TRANSLATIONS:
        kind = "a folder of translation memories" if path.is_dir() else f"{TRANSLATION_KINDS[form]} file"
        chosen = {"columns": _chosen_languages(path, form, columns)} if columns else {}
        names = column_names(path) if not columns else ()
        direction = "" if len(names) != 2 else f", from {names[0]} to {names[1]}"
        alternatives = tuple(reversed(names)) if direction else ()
        return Detected("translate", {"corpus": "parallel", **chosen}, f"{kind}{direction}", alternatives)
    if name.endswith(".json") and task in (None, "answer") and _is_squad(path):
        refuse_columns(path, columns, "a SQuAD file")
        return Detected("answer", {"corpus": "squad-files"}, "questions with answers in SQuAD format")
    if (form is None or name.endswith(".txt")) and not columns:
        if task is None and looks_tagged(path):
            return _tagged(path, columns)
        if task is None and not looks_tabular(path):
            return _text(path, columns)
        form = form or "tsv"
    table = replace(profile_table(path, form or "tsv", columns.names), multi_label=multi_label)
    return _detect_table(table, task, columns)


def _chosen_languages(path: Path, form: Format, columns: NamedColumns) -> tuple[str, ...]:
    """Return the named languages of a translation memory; raise an error if it lacks one of them."""
    names = column_names(path)
    for name in columns.names:
        if find_language(name, names, form) not in names:
            option = "label" if name == columns.label else "column"
            raise DataError(f"{path} has no language {name!r} for --{option}; its languages are {', '.join(names)}.")
    if len(columns.names) != 2:
        raise UsageError(
            f"{path} is a translation memory. Name the source language with --column and the target language "
            "with --label."
        )
    return columns.names


def refuse_columns(path: Path, columns: NamedColumns, kind: str) -> None:
    """Raise an error if columns are named for a file without columns."""
    if columns:
        raise UsageError(f"--column and --label require a table, but {path} is {kind}; leave them out.")


def _text(path: Path, columns: NamedColumns, task: str | None = None) -> Detected:
    refuse_columns(path, columns, "a folder of texts" if path.is_dir() else "read as plain text")
    return Detected(task or "language-model", {"corpus": "text"}, "plain text")


def _tagged(path: Path, columns: NamedColumns) -> Detected:
    is_conllu = without_compression(path).lower().endswith(".conllu")
    data: dict[str, object] = {"corpus": "conll", "format": "conllu" if is_conllu else "conll"}
    kind = "CoNLL-U" if is_conllu else "one word per line with its tag in the last column"
    if columns:
        word, tag = columns.inputs[0] if columns.inputs else "1", columns.label or "-1"
        if is_conllu or len(columns.inputs) > 1 or not all(re.fullmatch(r"-?[1-9]\d*", each) for each in (word, tag)):
            raise UsageError("In a CoNLL file, --column and --label are the numbers of the columns of word and tag.")
        data["columns"], kind = (int(word), int(tag)), f"words in column {word}, tags in column {tag}"
    return Detected("tag", data, f"tagged sentences, {kind}")


def _is_squad(path: Path) -> bool:
    try:
        content = json.loads(read_nonblank(path))
    except ValueError:
        return False
    return isinstance(content, dict) and isinstance(content.get("data"), list)


# --- tables -----------------------------------------------------------------------------------------------------------


def _detect_table(table: TableSample, task: str | None, columns: NamedColumns) -> Detected:
    """Recognize the kind of a table; the most specific kinds are tried first."""
    for name in columns.names:
        if table.get(name) is None:
            option = "label" if name == columns.label else "column"
            raise DataError(f"{table.path} has no column {name!r} for --{option}: {did_you_mean(name, table.names)}.")
    inputs = [column for name in columns.inputs if (column := table.get(name)) is not None]
    chosen = ChosenColumns(inputs, None if columns.label is None else table.get(columns.label))
    kinds: Sequence[str] | None = None if task is None else (task,)
    if task is None and inputs:
        kinds = ("classify",) if len(inputs) == 1 else ("pair", "translate") if len(inputs) == 2 else ("choice",)
    for kind, recognize in RECOGNIZERS:
        if (kinds is None or kind in kinds) and (detected := recognize(table, chosen)) is not None:
            return detected
    return _refuse(table.path, task, table)


def _refuse(path: Path, task: str | None, table: TableSample | None = None) -> Detected:
    if task == "translate" and table is not None and table.form == "tsv":
        return Detected("translate", {"corpus": "parallel"}, "a table")  # the reader of the file reports the problem
    kinds = f"the task {task}" if task else "any task"
    listed = "" if table is None else f" Its columns: {', '.join(shorten(name) for name in table.names)}."
    choose = "Name" if task else "Choose a task with --task, and name"
    raise UsageError(
        f"{path} was not recognized as data for {kinds}.{listed} {choose} the columns of a table with --column and "
        "--label."
    )


def _instructions(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    instruction, more = chosen.first_input or table.find("instruction", "prompt"), chosen.inputs[1:]
    output = chosen.label or table.find(*OUTPUTS)
    if instruction is None or output is None or len(more) > 1 or table.form not in ("jsonl", "parquet"):
        return None
    data = {"corpus": "instructions", "instruction": instruction.name, "output": output.name}
    data |= {"input": more[0].name} if more else {}
    return Detected(
        "instruct", data, f"instructions in {table.describe(instruction)}, answers in {table.describe(output)}"
    )


def _choices(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    text, answer = chosen.first_input or table.find(*CONTEXTS), chosen.label or table.find(*ANSWERS)
    options = [column for column in table.columns if OPTION.fullmatch(column.name.casefold()) and column is not answer]
    options = list(chosen.inputs[1:]) or options
    listed = table.find(*OPTION_LISTS) if len(chosen.inputs) < 2 else None
    listed = chosen.inputs[1] if len(chosen.inputs) == 2 else listed
    if text is None or answer is None or (listed is None and len(options) < 2):
        return None
    if listed is not None and not all(isinstance(cell, list) for cell in listed.cells):
        return None
    several = listed.name if listed is not None else tuple(table.key(column) for column in options)
    names = {str(value) for value in answer.texts}
    base = 1 if "0" not in names and str(len(options)) in names else 0
    keys = {"text": table.key(text), "options": several, "answer": table.key(answer)}
    data = {"corpus": "choices", **keys, "index_base": base}
    return Detected("choice", data, f"multiple choice: {table.describe(text)}, answers in {table.describe(answer)}")


def _pairs(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    sides: Sequence[ColumnProfile | None] = chosen.inputs or (None, None)
    for names in PAIRS if not chosen.inputs else ():
        if all(found := [table.find(name) for name in names]):
            sides = found
            break
    others = [column for column in table.columns if column not in sides]
    label = chosen.label or table.find(*LABELS)
    if sides[0] is None and not table.has_header:  # two columns of texts and one column of labels
        texts = [column for column in table.columns if column.is_text]
        labels = [column for column in table.columns if column.is_label or column.is_score]
        if len(texts) == 2 and len(labels) == 1 and len(table.columns) == 3:
            sides, label = texts, labels[0]
    if label is None or label in sides:
        label = next((column for column in others if column.is_label or column.is_score), None)
    first, second = sides if len(sides) == 2 else (None, None)
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


def _pairs_by_name(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    """Recognize sentence pairs by the usual names, even if a column of numbers looks like the times of a series."""
    if not table.has_header or chosen.inputs or not names_labelled_pairs(table.names):
        return None
    sides = next(found for names in PAIRS if all(found := [table.find(name) for name in names]))
    are_texts = all(side is not None and not side.is_numeric and side.words >= 2 for side in sides)
    return _pairs(table, chosen) if are_texts else None


def _translations(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    pairs = [(column, column.name.rpartition(".")[2]) for column in table.columns]
    languages = [column for column, name in pairs if is_language(name) and column.is_text]
    sides: Sequence[ColumnProfile | None] = languages if table.has_header and len(languages) == 2 else (None, None)
    for names in TRANSLATION_SIDES:
        if sides[0] is None and all(found := [table.find(name) for name in names]):
            sides = found
    texts = [column for column in table.columns if column.is_text]
    if sides[0] is None and not table.has_header and len(texts) >= 2 and texts[0].number == 1 and texts[1].number == 2:
        sides = texts[:2]
    named = [*chosen.inputs, *([] if chosen.label is None else [chosen.label])]
    sides = named or sides
    first, second = sides if len(sides) == 2 else (None, None)
    if first is None or second is None:
        return None
    data = {"corpus": "parallel", "columns": (table.key(first), table.key(second))}
    return Detected(
        "translate", data, f"sentence pairs to translate, from {table.describe(first)} to {table.describe(second)}"
    )


def _several_labels(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    """Recognize texts with several labels in a column, or in columns of 0 and 1."""
    plain = [column for column in table.columns if not any(isinstance(cell, list) for cell in column.cells)]
    text = chosen.first_input or text_column(replace(table, columns=plain))
    if text is None or table.multi_label is False or _pairs(table, chosen) is not None:
        return None
    others = [column for column in table.columns if column is not text]
    named = chosen.label or table.find(*LABELS, *LABEL_SETS)
    for column in others if named is None else [named]:
        data: dict[str, object] = {"corpus": "table", "text": table.key(text), "label": table.key(column)}
        data["multi_label"] = True
        where = f"texts in {table.describe(text)}"
        separator = None
        if column in plain:
            separator = find_separator(column.texts, force=bool(table.multi_label and named))
        is_tagged = any(are_parallel(column.cells, other.cells) for other in others if other is not column)
        if are_lists(column.cells) and not is_tagged:
            return Detected("classify", data, f"{where}, lists of labels in {table.describe(column)}")
        if separator is not None:
            joined = f'{where}, several labels in {table.describe(column)}, separated by "{separator}"'
            return Detected("classify", {**data, "label_separator": separator}, joined)
        if table.multi_label and named is not None:
            return Detected("classify", data, f"{where}, labels in {table.describe(column)}")
    flags = [column.name for column in others if are_flags(column.cells)]
    if named is not None or len(flags) < 2 or not table.has_header:
        return None
    data = {"corpus": "table", "text": text.name, "label": tuple(flags), "multi_label": True}
    listed = shorten(", ".join(flags))
    return Detected(
        "classify", data, f"texts in {table.describe(text)}, labels in {len(flags)} columns of 0 and 1: {listed}"
    )


def _labelled_by_name(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    """Recognize texts and labels by columns that have the usual names or that the user named."""
    is_named = [chosen.inputs or table.find(*TEXTS), chosen.label or table.find(*LABELS)]
    return _labelled(table, chosen) if table.has_header and all(is_named) else None


def _labelled(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    if len(chosen.inputs) > 1:
        return None
    text = chosen.first_input or table.find(*TEXTS)
    label = chosen.label or table.find(*(name for name in LABELS if text is None or name != text.name))
    if label is None:
        labels = [column for column in reversed(table.columns) if column is not text and column.is_label]
        label = next((column for column in labels if column.is_filled), next(iter(labels), None))
    if text is None:
        text = text_column(replace(table, columns=[column for column in table.columns if column is not label]))
    if text is None or label is None or (label.distinct > len(label.texts) / 2 and chosen.label is None):
        return None
    data = {"corpus": "table", "text": table.key(text), "label": table.key(label)}
    others = [column.name for column in table.columns if column not in (text, label) and column.is_label]
    alternatives = () if chosen.label or not table.has_header else tuple(others)
    reason = f"texts in {table.describe(text)}, labels in {table.describe(label)}"
    return Detected("classify", data, reason, alternatives)


def _series(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    time, *values = table.columns
    values = list(chosen.inputs) or values
    if not table.has_header or not time.is_time or not values or not any(column.is_numeric for column in values):
        return None
    data: dict[str, object] = {"corpus": "series-file", "file": str(table.path)}
    if chosen.inputs:
        data["columns"] = tuple(column.name for column in values)
    return Detected("forecast", data, f"a series with times in {table.describe(time)}")


def _series_rows(table: TableSample, chosen: ChosenColumns) -> Detected | None:
    values = [column for column in table.columns if column.is_numeric]
    ends = [table.columns[0], table.columns[-1]]
    label = chosen.label or next((column for column in ends if column.is_label and not column.is_score), None)
    if label is None or chosen.inputs or len(table.columns) < 9 or len(values) < len(table.columns) - 1:
        return None
    data = {"corpus": "series-rows", "label": table.key(label)}
    return Detected("series-classify", data, f"a series in every row, labels in {table.describe(label)}")


RECOGNIZERS: Sequence[tuple[str, Callable[[TableSample, ChosenColumns], Detected | None]]] = (
    ("vqa", recognize_visual_questions),
    ("instruct", _instructions),
    ("choice", _choices),
    ("classify-images", recognize_labelled_images),
    ("caption", recognize_captions),
    ("classify", _several_labels),
    ("pair", _pairs_by_name),
    ("series-classify", _series_rows),
    ("forecast", _series),
    ("pair", _pairs),
    ("classify", _labelled_by_name),
    ("translate", _translations),
    ("classify", _labelled),
)
