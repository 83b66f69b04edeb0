"""Fine-tuning of an imported BERT for all tasks with a backbone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import classify_recipe, tag_recipe
from tests.matching import pairs, write_pairs
from tests.small_bert import save_bert
from tests.understanding import trained

from seqloom.exchange.conversion import import_model
from seqloom.predict.loader import load
from seqloom.recipes import build_recipe
from seqloom.tasks import task_info

pytest.importorskip("transformers")

STEPS = ["train.steps=2", "train.evaluate_every=1"]
CONTEXTS = [
    ("Le cafe\u0301 est à Orléans, dit-on.", "Orléans"),
    ("On va au cafe\u0301. Il est bon.", "cafe\u0301"),
    ("यह हिन्दी में लिखा है", "हिन्दी"),
    ("A 👩\u200d🚀 flew to İSTANBUL today", "👩\u200d🚀"),
    ("She saw STRASSE and straße", "straße"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    save_bert(folder / "there", "BertModel")
    return import_model(folder / "there", folder / "run")[0].path


def write_questions(path: Path) -> Path:
    paragraphs = [
        {
            "context": context,
            "qas": [
                {"id": f"{n}-{copy}", "question": "Où ?", "answers": [_answer(context, text)]} for copy in range(4)
            ],
        }
        for n, (context, text) in enumerate(CONTEXTS)
    ]
    articles = [{"title": str(n), "paragraphs": [paragraph]} for n, paragraph in enumerate(paragraphs)]
    path.write_text(json.dumps({"data": articles}), encoding="utf-8")
    return path


def _answer(context: str, text: str) -> dict[str, Any]:
    return {"text": text, "answer_start": context.index(text)}


def recipe_for(task: str, folder: Path, run: Path) -> Any:
    if task == "classify":
        return classify_recipe(folder, run, *STEPS)
    if task == "tag":
        return tag_recipe(folder, run, *STEPS)
    if task == "answer":
        data = {"corpus": "squad-files", "train": str(write_questions(folder / "questions.json"))}
        more: dict[str, Any] = {"batch": {"max_length": 40, "max_question_length": 4}}
    else:
        data, more = {"corpus": "sentence-pairs", "train": str(write_pairs(folder / "pairs.tsv", pairs()))}, {}
    train = {"steps": 2, "lr": 1e-3, "evaluate_every": 1, "device": "cpu"}
    model = {"kind": f"fine-tuned-{task}"}
    mapping = {"task": task, "init": {"from": str(run)}, "data": data, "model": model, "train": train, **more}
    return build_recipe(mapping, "the recipe")


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "pair"])
def test_all_tasks_can_start_from_imported_weights(task: str, run: Path, tmp_path: Path) -> None:
    recipe = recipe_for(task, tmp_path, run)
    fresh = task_info(task).task.prepare(recipe).model()
    there = load(run, "cpu").model.state_dict()
    for name, tensor in fresh.backbone.rename_to_pretrained(fresh.backbone.state_dict()).items():
        assert torch.equal(tensor, there[name]), name
    trained(recipe, tmp_path / "tuned")
    model = load(tmp_path / "tuned", "cpu")
    assert model.tokenizer.to_json() == load(run, "cpu").tokenizer.to_json()
    assert model.run.data["init"]["corpus"] == "imported"
    assert model.embed("Café").shape == (1, 16)


def test_answers_keep_their_spelling(run: Path, tmp_path: Path) -> None:
    """A model that predicts the correct tokens makes no errors, even with accents, vowel signs and emoji."""
    task: Any = task_info("answer").task.prepare(recipe_for("answer", tmp_path, run))
    for split in ("train", "dev", "test"):
        for window, (start, end) in zip(task.windows(split), task.answer_spans(split), strict=True):
            question = task.corpus.split(split)[window.number]
            spans = task.spans(question.context)
            first, last = start - window.shift, end - window.shift
            assert question.context[spans[first][0] : spans[last][1]].strip() == question.answer.text


def test_tagger_returns_character_offsets(run: Path, tmp_path: Path) -> None:
    trained(tag_recipe(tmp_path, run, *STEPS), tmp_path / "tuned")
    line = "Rene\u0301 lives in हिन्दी 👍🏽, İstanbul."
    (tagged,) = load(tmp_path / "tuned", "cpu").tag([line])
    assert [word.text for word in tagged.words] == ["Rene\u0301", "lives", "in", "हिन्दी", "👍🏽", ",", "İstanbul", "."]
    assert all(line[word.start : word.end] == word.text for word in tagged.words)


def test_classifier_shows_a_weight_for_each_word(run: Path, tmp_path: Path) -> None:
    trained(classify_recipe(tmp_path, run, *STEPS), tmp_path / "tuned")
    (told,) = load(tmp_path / "tuned", "cpu").classify(["Une crème à İstanbul"], why=True)
    assert [weight.text for weight in told.why.words] == ["Une", "crème", "à", "İstanbul"]
