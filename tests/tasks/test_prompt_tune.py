"""Prompt tuning of a language model, and the run that it creates, which needs no other run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import pretrained_run
from tests.prompt_recipes import tune_recipe, wide_gpt
from tests.understanding import assert_same_checkpoints, trained

import seqloom
from seqloom.config import to_mapping
from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.core.files import sha256, tensors_from_file
from seqloom.predict.ensembles import average_runs
from seqloom.recipes import build_recipe, recipe_of
from seqloom.runs.run import Run
from seqloom.tasks.prompt_tune import Task
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    wide_gpt(folder / "gpt")
    pretrained_run(folder / "lstm", "recurrent-lm")
    pretrained_run(folder / "bert", "bert")
    trained(tune_recipe(folder, folder / "gpt"), folder / "tuned")
    return folder


def test_run_stores_prompt_and_one_copy_of_language_model(folder: Path) -> None:
    run = folder / "tuned"
    assert set(tensors_from_file(run / "model.safetensors")) == {"prompt"}
    frozen, then = (
        tensors_from_file(run / "frozen.safetensors"),
        tensors_from_file(folder / "gpt" / "model.safetensors"),
    )
    assert {name.removeprefix("frozen.") for name in frozen} == set(then)
    assert all(torch.equal(frozen[f"frozen.{name}"], tensor) for name, tensor in then.items())
    began = Run.open(run).data["init"]
    assert began["from"] == str(folder / "gpt")
    assert began["sha256"] == sha256((folder / "gpt" / "model.safetensors").read_bytes())
    assert "Its training started from the weights of `gpt`" in (run / "card.md").read_text()


def test_run_is_self_contained(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "tuned", tmp_path / "alone")
    hidden = folder / "gpt-hidden"
    (folder / "gpt").rename(hidden)
    try:
        model = seqloom.load(tmp_path / "alone")
        figures = model.evaluate("test")
        (result,) = model.choose("a warm, clever cast")
    finally:
        hidden.rename(folder / "gpt")
    assert set(figures) >= {"loss", "accuracy", "macro_f1"}
    assert {losses.label for losses in result.candidates} == {"good", "bad"}
    assert isinstance(model.generate("a warm", max_tokens=5), str)


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_training_lowers_the_loss_with_frozen_language_model(folder: Path, tmp_path: Path, kind: str) -> None:
    recipe = tune_recipe(folder, folder / kind, "train.steps=60", "train.evaluate_every=60", "train.lr=0.2")
    task = Task.prepare(recipe)
    batch = task.batch(1, 0)
    before = task.loss(task.model(), batch, None).value
    model = Run.open(trained(recipe, tmp_path / "new")).model("cpu")
    after = task.loss(model, batch, None).value
    # The output of an untrained LSTM hardly depends on its input
    assert after < before - (0.02 if kind == "gpt" else 0)
    weights = tensors_from_file(folder / kind / "model.safetensors")
    assert all(torch.equal(model.frozen.state_dict()[name], tensor) for name, tensor in weights.items())


def test_loss_covers_only_label_and_end(folder: Path) -> None:
    task = Task.prepare(tune_recipe(folder, folder / "gpt"))
    batch, model = task.batch(1, 0), task.model().eval()
    losses = [
        task.tokenizer.decode(targets[counted].tolist())
        for targets, counted in zip(batch["targets"], batch["counted"], strict=True)
    ]
    assert {text.strip() for text in losses} == {"good", "bad"}
    last = batch["counted"].int().argmax(dim=1) + batch["counted"].sum(dim=1) - 1
    assert bool((batch["targets"].gather(1, last.unsqueeze(1)) == task.tokenizer.end).all())
    scores, _ = model.score(batch["inputs"], batch["targets"], model.start(rows=len(batch["inputs"])))
    assert task.loss(model, batch, None).value.item() == pytest.approx(
        -scores[batch["counted"]].mean().item(), abs=1e-6
    )


def test_evaluation_and_prompt_command_agree(folder: Path) -> None:
    model = seqloom.load(folder / "tuned")
    task = model.task()
    examples = task.corpus.split("test")
    chosen = [result.label for result in model.choose([example.text for example in examples])]
    right = sum(label == example.label for label, example in zip(chosen, examples, strict=True))
    assert task.evaluate(model.model, "test")["accuracy"] == pytest.approx(right / len(examples))
    best = task.log_probs(model.model, "test").argmax(dim=1).tolist()
    assert [task.names[position] for position in best] == chosen


def test_resumed_training_is_bit_identical(folder: Path, tmp_path: Path) -> None:
    recipe = tune_recipe(folder, folder / "gpt")
    stop = Stop()
    for event in begin(recipe, tmp_path / "resumed").events(stop):
        if event.step == 15:
            stop.request()
    for _ in resume(tmp_path / "resumed").events():
        pass
    assert_same_checkpoints(tmp_path / "resumed", folder / "tuned")


def test_averaged_run_includes_language_model(folder: Path, tmp_path: Path) -> None:
    average_runs([folder / "tuned"], out=tmp_path / "mean", last=2)
    assert (tmp_path / "mean" / "frozen.safetensors").exists()
    assert seqloom.load(tmp_path / "mean").evaluate("test")["loss"] > 0


def test_long_texts_are_truncated_so_that_label_fits(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text(
        "review,verdict\n" + "".join(f'"{"dull " * 60}{n}",bad\n"a warm film {n}",good\n' for n in range(20))
    )
    task = Task.prepare(tune_recipe(tmp_path, folder / "gpt", "batch.max_length=40"))
    assert any("with their label and are truncated" in warning for warning in task.warnings())
    for example in task.prompts("train"):
        assert len(example.ids) < 40
        assert task.tokenizer.decode(example.ids).endswith((" = bad", " = good"))
    with pytest.raises(DataError, match=r"need .* tokens, but only 3 fit"):
        Task.prepare(tune_recipe(tmp_path, folder / "gpt", "batch.max_length=3")).steps_per_epoch()


def test_label_outside_vocabulary_is_rejected(folder: Path, tmp_path: Path) -> None:
    trained(
        build_recipe(
            {
                "task": "language-model",
                "data": {"corpus": "toys", "train": 200, "dev": 20, "test": 20},
                "tokenizer": {"kind": "characters"},
                "batch": {"size": 4, "length": 16},
                "model": {"kind": "recurrent-lm", "hidden": 8},
                "train": {"steps": 1, "device": "cpu"},
            },
            "the recipe",
        ),
        tmp_path / "toys",
    )
    with pytest.raises(DataError, match="lacks tokens of the label"):
        Task.prepare(tune_recipe(folder, tmp_path / "toys"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["init.weights=false"], "init.weights must be true"),
        (["tokenizer.kind=words"], "leave the section out"),
        (['template="{text}"'], "must contain {text} and then {label}"),
        (["model.length=0"], "length: must be at least 1"),
        (["model.length=95"], "at most 94"),
        (["model.backbone.d_model=99"], "model.backbone.d_model is 99, but 12 in the run"),
        (["init.from=nowhere"], "there is no run nowhere"),
    ],
)
def test_invalid_recipe_is_rejected(folder: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(SeqloomError) as caught:
        tune_recipe(folder, folder / "gpt", *overrides)
    assert words in str(caught.value)


def test_other_model_kinds_are_rejected(folder: Path) -> None:
    with pytest.raises(UsageError, match="must be a language model, of kind recurrent-lm or gpt; it is of kind bert"):
        tune_recipe(folder, folder / "bert")
    with pytest.raises(UsageError, match="cannot be fine-tuned: its model is of kind soft-prompt"):
        tune_recipe(folder, folder / "tuned")


def test_recipe_of_run_is_complete(folder: Path) -> None:
    recipe = recipe_of(Run.open(folder / "tuned"))
    assert recipe.model.backbone.kind == "gpt" and recipe.model.length == 3
    assert to_mapping(recipe)["init"] == {"from": str(folder / "gpt"), "weights": True, "lora": None}


def test_plain_text_evaluation_is_rejected(folder: Path) -> None:
    model: Any = seqloom.load(folder / "tuned")
    with pytest.raises(UsageError, match="evaluated on texts with labels"):
        model.evaluate_documents(["a text"])
