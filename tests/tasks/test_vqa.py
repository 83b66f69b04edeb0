"""Visual question answering: sources with histories, metrics, choices, training and resumed training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqloom import load, train_recipe
from seqloom.core.files import tensors_from_file
from seqloom.evaluate.visual_questions import accuracy_by_type, compare_answers, score_answers
from seqloom.recipes import read_recipe
from seqloom.tasks.vqa import Task
from seqloom.train.events import Saved

SMALL = ["data.train=30", "data.dev=6", "data.test=6", "data.side=24", "model.image.channels=[8,16]", "batch.size=16"]
STEPS = ["train.epochs=null", "train.steps=6", "train.evaluate_every=3", "train.warmup=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vqa") / "run"
    train_recipe("dialogue-shapes", *SMALL, *STEPS, out=path)
    return path


@pytest.mark.parametrize(("history", "turns"), [("null", 4), ("2", 2), ("0", 0)])
def test_source_contains_the_last_questions_of_the_dialogue(history: str, turns: int) -> None:
    task = Task.prepare(read_recipe("dialogue-shapes", [*SMALL, f"history={history}"])[1])
    examples = task.corpus.split("train")
    batch = task.source_batch("train", np.arange(10))
    ids, mask = batch["source"]["text"], batch["source_mask"][:, task.vectors_per_image :]
    for example, tokens, real in zip(examples, ids, mask, strict=False):
        read = example.history[len(example.history) - min(turns, len(example.history)) :]
        words = [text for turn in read for text in turn]
        text = task.tokenizer.decode(tokens[real].tolist()[:-1])
        assert text == " | ".join([*words, example.question])
    assert task.describe_data()["history"] == turns


def test_accuracy_counts_exact_answers() -> None:
    is_correct = compare_answers(["Dog!", "green", "two", ""], [["a dog"], ["red"], ["2", "two"], ["no"]])
    assert is_correct == [True, False, True, False]
    assert score_answers(is_correct, [False, True, True, False]) == {"accuracy": 1 / 2, "follow_up_accuracy": 1 / 2}
    assert score_answers(is_correct[:1], [False]) == {"accuracy": 1.0}
    types = accuracy_by_type(is_correct, ["what", "colour", "colour", ""])
    assert [(name, each.questions, each.accuracy) for name, each in types.items()] == [
        ("colour", 2, 0.5),
        ("what", 1, 1.0),
    ]


def test_report_measures_written_answers_and_choices(run: Path) -> None:
    model = load(run, "cpu")
    report, examples = model.report("test"), model.training_task.corpus.split("test")
    correct = [line.text.removeprefix("a ") == line.example.answers[0].removeprefix("a ") for line in report.lines]
    assert report.metrics["accuracy"] == np.mean(correct)
    follow_ups = [value for value, example in zip(correct, examples, strict=True) if example.needs_history]
    assert report.metrics["follow_up_accuracy"] == np.mean(follow_ups)
    chosen = []
    for example in examples:  # each choice is scored separately
        scores = []
        for choice in example.choices:
            ids = [*model.tokenizer.encode(choice), model.tokenizer.end]
            text = torch.tensor([[*model.tokenizer.encode(example.source_text), model.tokenizer.end]])
            source = {"images": torch.from_numpy(example.image.pixels[None]), "text": text}
            mask = torch.ones(1, model.vectors_per_image + text.shape[1], dtype=torch.bool)
            with torch.no_grad():
                logits = model.model(source, mask, torch.tensor([[model.tokenizer.end, *ids[:-1]]]))
            scores.append(torch.log_softmax(logits[0].double(), dim=-1)[range(len(ids)), ids].sum().item())
        chosen.append(example.choices[int(np.argmax(scores))] == example.answers[0])
    assert report.metrics["choice_accuracy"] == np.mean(chosen)
    assert sum(kind.questions for kind in report.by_type.values()) == len(examples)
    assert model.run.metrics("test")["by_type"].keys() == report.by_type.keys()


def test_resumed_training_gives_the_same_weights(run: Path, tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_recipe("dialogue-shapes", *SMALL, *STEPS, out=tmp_path / "b", on_event=stop)
    train_recipe("dialogue-shapes", *SMALL, *STEPS, out=tmp_path / "b", resume=True)
    a, b = (tensors_from_file(path / "model.safetensors") for path in (run, tmp_path / "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)
