"""Files and recipes of small models for sentence pairs, multiple choice and question answering."""

import json
from pathlib import Path
from typing import Any

from seqloom.config import apply_overrides, parse_overrides
from seqloom.recipes import build_recipe

COLOURS, THINGS = ("red", "blue", "green", "grey"), ("fox", "cat", "hat", "box", "cup")
BODY: dict[str, dict[str, Any]] = {
    "bert": {"kind": "bert", "d_model": 16, "heads": 2, "layers": 1, "dropout": 0.0, "init": 0.1, "norm_first": True},
    "gpt": {"kind": "gpt", "d_model": 16, "heads": 2, "layers": 1, "dropout": 0.0, "init": 0.1},
    "recurrent-lm": {"kind": "recurrent-lm", "cell": "gru", "hidden": 16},
}
TRAIN = {"steps": 60, "lr": 0.01, "evaluate_every": 30, "log_every": 5, "device": "cpu"}


def _shuffle(rows: list[Any]) -> list[Any]:
    return [rows[37 * index % len(rows)] for index in range(len(rows))]  # 37 is prime and does not divide any length


def pairs() -> list[tuple[str, str, str]]:
    """Return pairs whose label is yes if the second text names red or blue, and otherwise no."""
    return _shuffle(
        [
            (f"a {colour} {thing}", f"it is {other}", "yes" if other in ("red", "blue") else "no")
            for colour in COLOURS
            for thing in THINGS
            for other in COLOURS
        ]
    )


def scores() -> list[tuple[str, str, str]]:
    return [(first, second, {"yes": "4.5", "no": "0.5"}[label]) for first, second, label in pairs()]


def write_pairs(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    path.write_text("\n".join(["first\tsecond\tlabel", *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def write_choices(path: Path) -> Path:
    rows = [
        {"text": f"the {thing} is", "options": options, "answer": options.index("red")}
        for thing in THINGS
        for other in ("blue", "green")
        for options in (["red", other], [other, "red"], [other, "grey", "red"])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in _shuffle(rows)), encoding="utf-8")
    return path


def write_questions(path: Path) -> Path:
    articles = []
    for colour in COLOURS:
        for thing in THINGS:
            context = f"There is a {colour} {thing}. It stands on the table."
            answers = [{"text": colour, "answer_start": context.index(colour)}]
            questions = [{"id": f"{colour}-{thing}", "question": "Which colour?", "answers": answers}]
            articles.append({"title": f"{colour} {thing}", "paragraphs": [{"context": context, "qas": questions}]})
    path.write_text(json.dumps({"data": _shuffle(articles)}), encoding="utf-8")
    return path


def recipe(folder: Path, task: str, *overrides: str, backbone: str = "bert") -> Any:
    """Return a recipe of one of the tasks on colours. `score` selects pairs with scores."""
    data: dict[str, dict[str, Any]] = {
        "pair": {"corpus": "sentence-pairs", "train": str(folder / "pairs.tsv")},
        "score": {"corpus": "sentence-pairs", "train": str(folder / "scores.tsv")},
        "choice": {"corpus": "choices", "train": str(folder / "choices.jsonl")},
        "answer": {"corpus": "squad-files", "train": str(folder / "questions.json")},
    }
    if not Path(data[task]["train"]).exists():
        write_pairs(folder / "pairs.tsv", pairs())
        write_pairs(folder / "scores.tsv", scores())
        write_choices(folder / "choices.jsonl")
        write_questions(folder / "questions.json")
    kind = "pair" if task == "score" else task
    mapping: dict[str, Any] = {
        "task": kind,
        "data": data[task],
        "tokenizer": {"kind": "words", "split": "punctuation"},
        "batch": {"tokens": 160, "max_length": 24},
        "model": {"kind": f"fine-tuned-{kind}", "backbone": BODY[backbone], "dropout": 0.0},
        "train": TRAIN,
    }
    mapping |= {"target": "score"} if task == "score" else {}
    mapping["batch"] |= {"max_question_length": 8} if task == "answer" else {}
    return build_recipe(apply_overrides(mapping, parse_overrides(overrides)), "the recipe")
