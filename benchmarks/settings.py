"""The search for the settings of `seqloom init`: models and hyperparameters on small samples of four kinds of data.

benchmarks/settings.yaml lists the settings of each task. Each setting is trained on a sample of a corpus and measured
on its dev split. `init` is the recipe that `seqloom init` writes, and `init-MODEL` is that of `--model MODEL`. Settings
are selected on dev. Only the recipe of `init` is measured on test, and only on the corpora for confirmation. Rows are
appended to a CSV file, and rows that the file already has are skipped, so that the search can be stopped and resumed.
The length of training is a number of epochs, so the results do not depend on the speed of the machine.

    python benchmarks/settings.py --data FOLDER                          the whole search, which takes hours on one core
    python benchmarks/settings.py --data FOLDER --device cuda            larger samples on a GPU: settings-gpu.yaml
    python benchmarks/settings.py --data FOLDER --tasks tag --corpora ewt --sizes 1000 --settings init lstm-64
    python benchmarks/settings.py --tables                               print the tables of existing rows in Markdown
"""

import argparse
import csv
import gzip
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml

from seqloom.config import apply_overrides, parse_overrides
from seqloom.core.errors import SeqloomError, UsageError
from seqloom.data.corpora import find, load
from seqloom.data.detect import detect
from seqloom.data.files import data_folder, use_data_folder
from seqloom.predict.loader import load as open_run
from seqloom.recipes import read_recipe
from seqloom.recipes.drafts import Request, draft_recipe
from seqloom.train.events import Finished
from seqloom.training import begin

HERE = Path(__file__).parent
SUFFIXES = {"cpu": "", "cuda": "-gpu"}  # suffixes of the file names settings.yaml and settings.csv
TABLES = HERE.parent / "docs" / "explanations"
COLUMNS = ("task", "corpus", "size", "setting", "seed", "metric", "dev", "test", "steps", "parameters", "seconds")
METRICS = {
    "translate": "bleu",
    "classify": "accuracy",
    "tag": "token_accuracy",
    "tag/wnut17": "span_f1",
    "language-model": "bits_per_character",
}
HELD_OUT = 1000  # number of pairs in dev and in test
HELD_OUT_CHARACTERS = 100_000
MAX_SOURCE_LINES = 30_000  # maximum lines of each corpus
SEED = 1  # random seed of the samples


# --- data -------------------------------------------------------------------------------------------------------------


def sample(items: Sequence[Any], size: int) -> list[Any]:
    """Draw a sample that is the beginning of every larger sample."""
    order = list(range(len(items)))
    random.Random(SEED).shuffle(order)
    return [items[index] for index in order[:size]]


def read_splits(corpus: str, **options: Any) -> dict[str, Sequence[Any]]:
    return dict(load(find(corpus).Config(corpus=corpus, **options)).splits)


def write_pairs(folder: Path, size: int, splits: Mapping[str, Sequence[Any]], target: str = "de") -> list[Path]:
    def rows(split: str) -> Iterator[str]:
        yield f"en\t{target}\n"
        for pair in sample(splits[split], size if split == "train" else HELD_OUT):
            yield f"{pair.source}\t{pair.target}\n"

    return write_files(folder, ".tsv", {split: rows(split) for split in splits})


def write_texts(folder: Path, size: int, splits: Mapping[str, Sequence[Any]]) -> list[Path]:
    def rows(split: str) -> Iterator[str]:
        for example in sample(splits[split], size) if split == "train" else splits[split]:
            yield json.dumps({"text": example.text, "label": example.label}, ensure_ascii=False) + "\n"

    return write_files(folder, ".jsonl", {split: rows(split) for split in splits})


def write_sentences(folder: Path, size: int, splits: Mapping[str, Sequence[Any]]) -> list[Path]:
    def rows(split: str) -> Iterator[str]:
        for sentence in sample(splits[split], size) if split == "train" else splits[split]:
            lines = zip(sentence.words, sentence.tags, strict=True)
            yield "".join(f"{word}\t{tag}\n" for word, tag in lines) + "\n"

    return write_files(folder, ".conll", {split: rows(split) for split in splits})


def write_characters(folder: Path, size: int, texts: Mapping[str, str]) -> list[Path]:
    """Write the beginning of each text up to the end of a line."""
    lengths = {split: size if split == "train" else HELD_OUT_CHARACTERS for split in texts}
    return write_files(folder, ".txt", {s: [text[: text.rfind("\n", 0, lengths[s]) + 1]] for s, text in texts.items()})


def write_files(folder: Path, ending: str, splits: Mapping[str, Any]) -> list[Path]:
    paths = []
    for split, lines in splits.items():
        paths.append(folder / f"{split}{ending}")
        paths[-1].write_text("".join(lines), encoding="utf-8")
    return paths


def read_text(path: str) -> str:
    folder = data_folder()
    if folder is None:
        raise UsageError("name the folder of the data with --data or SEQLOOM_DATA")
    return gzip.decompress((folder / path).read_bytes()).decode()


def read_language_model(path: str) -> dict[str, str]:
    return {
        split: read_text(path.format(name)) for split, name in (("train", "train"), ("dev", "valid"), ("test", "test"))
    }


def read_genres() -> dict[str, Sequence[Any]]:
    """Return the sentences of UD EWT, labelled with the genre that begins their identifier."""
    from seqloom.data.examples import TextClassificationExample

    pattern = re.compile(r"# sent_id = ([a-z]+)-.*?# text = (.*?)$", re.DOTALL | re.MULTILINE)
    return {
        split: [
            TextClassificationExample(text, genre)
            for genre, text in pattern.findall(read_text(f"ud_english_ewt/en_ewt-ud-{split}.conllu.gz"))
        ]
        for split in ("train", "dev", "test")
    }


def read_sources() -> dict[str, Sequence[Any]]:
    """Return the first eight words of the lines of five corpora, without marks, labelled with the corpus."""
    from seqloom.data.examples import TextClassificationExample

    files: dict[str, dict[str, str] | None] = {
        "tatoeba": None,
        "multi30k": {
            "train": "multi30k/train.en.gz",
            "dev": "multi30k/val.en.gz",
            "test": "multi30k/test_2016_flickr.en.gz",
        },
        "wikitext": {s: f"wikitext-2/{n}.txt.gz" for s, n in (("train", "train"), ("dev", "valid"), ("test", "test"))},
        "ptb": {s: f"ptb/ptb.{n}.txt.gz" for s, n in (("train", "train"), ("dev", "valid"), ("test", "test"))},
        "sst2": {s: f"sst2/sentence/{s}.tsv.gz" for s in ("train", "dev", "test")},
    }
    pairs = read_splits("tatoeba", target="de")
    splits: dict[str, Sequence[Any]] = {}
    for split in ("train", "dev", "test"):
        examples = []
        for label, paths in files.items():
            lines = (pair.source for pair in pairs[split]) if paths is None else read_text(paths[split]).splitlines()
            words = [re.findall(r"[a-z]+", line.lower().replace("<unk>", " "))[:8] for line in lines]
            texts = list(dict.fromkeys(" ".join(row) for row in words if len(row) >= 3))
            examples += [TextClassificationExample(text, label) for text in sample(texts, MAX_SOURCE_LINES)]
        splits[split] = sample(examples, len(examples) if split == "train" else 2 * HELD_OUT)
    return splits


def read_shakespeare() -> dict[str, str]:
    """Return 90 % of the plays for train, and 5 % each for dev and test."""
    text = read_text("tinyshakespeare/input.txt.gz")
    first, second = int(0.9 * len(text)), int(0.95 * len(text))
    return {"train": text[:first], "dev": text[first:second], "test": text[second:]}


CORPORA: dict[str, Callable[[Path, int], list[Path]]] = {
    "tatoeba": lambda folder, size: write_pairs(folder, size, read_splits("tatoeba", target="de")),
    "tatoeba-fr": lambda folder, size: write_pairs(folder, size, read_splits("tatoeba", target="fr"), "fr"),
    "multi30k": lambda folder, size: write_pairs(folder, size, read_splits("multi30k")),
    "sst2": lambda folder, size: write_texts(folder, size, read_splits("sst2", form="sentence")),
    "sst2-phrases": lambda folder, size: write_texts(folder, size, read_splits("sst2", form="glue")),
    "sources": lambda folder, size: write_texts(folder, size, read_sources()),
    "ewt-genres": lambda folder, size: write_texts(folder, size, read_genres()),
    "names": lambda folder, size: write_texts(folder, size, read_splits("names-18")),
    "ewt": lambda folder, size: write_sentences(folder, size, read_splits("ewt")),
    "wnut17": lambda folder, size: write_sentences(folder, size, read_splits("wnut17")),
    "wikitext2": lambda folder, size: write_characters(folder, size, read_language_model("wikitext-2/{}.txt.gz")),
    "ptb": lambda folder, size: write_characters(folder, size, read_language_model("ptb/ptb.{}.txt.gz")),
    "shakespeare": lambda folder, size: write_characters(folder, size, read_shakespeare()),
}


# --- search -----------------------------------------------------------------------------------------------------------


def recipe_of(task: str, setting: str, grid: Mapping[str, Any], files: list[Path], device: str) -> dict[str, Any]:
    """Return a recipe with the data of `init`.

    A setting named init or init-MODEL is that of `init`, others of the grid.
    """
    detected = detect(files, task)
    model = setting.removeprefix("init").removeprefix("-") if setting.startswith("init") else ""
    request = Request(files, task=task, model=model or None, device=device)
    drafted = draft_recipe(detected, request, "utf-8", setting, f"{setting}.yaml").recipe
    written: dict[str, Any] = yaml.safe_load(drafted)
    if setting.startswith("init"):
        return written
    chosen = grid["settings"][setting]
    if "task" in chosen:  # a complete recipe
        return {**chosen, "data": written["data"]}
    changes = [f"{key}={json.dumps(value)}" for key, value in chosen.items()]
    mapping = apply_overrides({**grid["recipe"], "data": written["data"]}, parse_overrides(changes))
    if task == "classify":  # keep only the keys that depend on the labels
        mapping = {**mapping, "loss": {**written["loss"], **mapping.get("loss", {})}, "monitor": written["monitor"]}
    if task == "tag" and "crf" not in mapping["model"]:
        mapping["model"] = {**mapping["model"], "crf": written["model"]["crf"]}
    return mapping


def measure(task: str, corpus: str, mapping: dict[str, Any], folder: Path, with_test: bool) -> dict[str, Any]:
    """Train a recipe and return the columns of its row."""
    metric = METRICS.get(f"{task}/{corpus}", METRICS[task])
    _, recipe = read_recipe(mapping)
    clock = time.process_time if recipe.train.device == "cpu" else time.perf_counter
    began = clock()
    finished = None
    training = begin(recipe, folder / "run")
    for event in training.events():
        if isinstance(event, Finished):
            finished = event
    assert finished is not None
    seconds = clock() - began
    predictor = open_run(folder / "run")
    scores = {split: predictor.report(split).metrics[metric] for split in ("dev", *(("test",) if with_test else ()))}
    factor = 1 if task in ("translate", "language-model") else 100
    return {
        "seed": recipe.seed,
        "metric": metric,
        **{split: f"{factor * score:.4f}" for split, score in scores.items()},
        "steps": finished.step,
        "parameters": finished.parameters,
        "seconds": f"{seconds:.0f}",
    }


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def format_tables(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table for each task and corpus, with the best setting first and the means over random seeds by size."""
    tables = []
    for task, corpus in dict.fromkeys((row["task"], row["corpus"]) for row in rows):
        chosen = [row for row in rows if (row["task"], row["corpus"]) == (task, corpus)]
        sizes = sorted({int(row["size"]) for row in chosen})
        means = {
            (setting, size): mean_row([row for row in chosen if (row["setting"], int(row["size"])) == (setting, size)])
            for setting, size in {(row["setting"], int(row["size"])) for row in chosen}
        }
        digits = 3 if task == "language-model" else 1
        order = sorted(
            sorted({row["setting"] for row in chosen}),  # equal results are sorted by name
            key=lambda name: [rank(task, means[name, size]["dev"]) if (name, size) in means else 1e9 for size in sizes],
        )
        lines = [f"**{task}, {corpus}**: {chosen[0]['metric']} on dev (test)", ""]
        lines.append("| setting | " + " | ".join(f"{size:,} | s" for size in sizes) + " |")
        lines.append("|---|" + "---:|---:|" * len(sizes))
        for setting in order:
            cells = []
            for size in sizes:
                mean = means.get((setting, size), {})
                test = f" ({mean['test']:.{digits}f})" if "test" in mean else ""
                cells += [f"{mean['dev']:.{digits}f}{test}", f"{mean['seconds']:.0f}"] if mean else ["", ""]
            lines.append(f"| `{setting}` | {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def mean_row(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Return the means over the random seeds. Test is omitted if any seed was not measured on it."""
    keys = [key for key in ("dev", "test", "seconds") if all(row[key] for row in rows)]
    return {key: fmean(float(row[key]) for row in rows) for key in keys}


def rank(task: str, score: float) -> float:
    """Return a score for which lower values are better."""
    return score if task == "language-model" else -score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the data folder; default: SEQLOOM_DATA")
    tasks = ["classify", "tag", "translate", "language-model"]
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--corpora", nargs="+", choices=list(CORPORA), default=list(CORPORA))
    parser.add_argument("--sizes", type=int, nargs="+", help="examples, or characters of a language model")
    parser.add_argument("--settings", nargs="+", help="names in settings.yaml, init, or init-MODEL")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--csv", type=Path, help="default: settings.csv of the documentation")
    parser.add_argument("--skip-init", action="store_true", help="without the rows of `init`")
    parser.add_argument("--tables", action="store_true", help="only print the tables")
    options = parser.parse_args()
    suffix = SUFFIXES[options.device]
    options.csv = options.csv or TABLES / f"settings{suffix}.csv"
    if options.tables:
        print(format_tables(read_rows(options.csv)))
        return
    torch.set_num_threads(1)
    grids = yaml.safe_load((HERE / f"settings{suffix}.yaml").read_text(encoding="utf-8"))
    with use_data_folder(options.data):
        for task, corpus, size, setting, seed in plan_rows(grids, options):
            if not setting.startswith("init") and setting not in grids[task]["settings"]:
                parser.error(f"{task} has no setting {setting!r}; choose from {', '.join(grids[task]['settings'])}")
            done = {tuple(row[key] for key in COLUMNS[:5]) for row in read_rows(options.csv)}
            if (task, corpus, str(size), setting, str(seed)) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                files = CORPORA[corpus](Path(folder), size)
                mapping = recipe_of(task, setting, grids[task], files, options.device)
                mapping["train"] = {**mapping["train"], "device": options.device}
                with_test = setting == "init" and corpus != grids[task]["search"]
                row = measure(task, corpus, {**mapping, "seed": seed}, Path(folder), with_test)
            append_row(options.csv, {"task": task, "corpus": corpus, "size": size, "setting": setting, **row})
            print(f"{task} {corpus} {size:,} {setting}: {row}", flush=True)


def plan_rows(grids: Mapping[str, Any], options: argparse.Namespace) -> Iterator[tuple[str, str, int, str, int]]:
    """Yield task, corpus, size, setting and seed of all rows that were requested, small samples first."""
    for level in range(max(len(grids[task]["seeds"]) for task in options.tasks)):
        for task in options.tasks:
            grid = grids[task]
            for corpus, sizes in grid["corpora"].items():
                if corpus not in options.corpora or (options.sizes and sizes[level] not in options.sizes):
                    continue
                searched = grid["rows"] if corpus == grid["search"] else grid["confirm"]
                names = options.settings or ([] if options.skip_init else ["init"]) + searched[level]
                for setting in names:
                    for seed in grid["seeds"][level]:
                        yield task, corpus, sizes[level], setting, seed


if __name__ == "__main__":
    try:
        main()
    except SeqloomError as error:
        sys.exit(f"settings.py: {error}")
