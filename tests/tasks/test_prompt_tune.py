"""Prompt tuning, from a run to a run that stands alone."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import pretrained_run
from tests.prompted import tune_recipe, wide_gpt
from tests.understanding import assert_same_checkpoints, trained

import seqloom
from seqloom.config import to_mapping
from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.core.files import sha256, tensors_from_file
from seqloom.predict.ensembles import make_average
from seqloom.recipes import build_recipe, recipe_of
from seqloom.runs.run import Run
from seqloom.tasks.prompt_tune import Task
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    wide_gpt(folder / "gpt")
    pretrained_run(folder / "lstm", "recurrent-lm")
    pretrained_run(folder / "bert", "bert")
    trained(tune_recipe(folder, folder / "gpt"), folder / "tuned")
    return folder


def test_only_the_prompt_is_kept_beside_one_copy_of_the_language_model(made: Path) -> None:
    run = made / "tuned"
    assert set(tensors_from_file(run / "model.safetensors")) == {"prompt"}
    frozen, then = tensors_from_file(run / "frozen.safetensors"), tensors_from_file(made / "gpt" / "model.safetensors")
    assert {name.removeprefix("frozen.") for name in frozen} == set(then)
    assert all(torch.equal(frozen[f"frozen.{name}"], tensor) for name, tensor in then.items())
    began = Run.open(run).data["init"]
    assert began["from"] == str(made / "gpt")
    assert began["sha256"] == sha256((made / "gpt" / "model.safetensors").read_bytes())
    assert f"Its training started from the weights of `{made / 'gpt'}`" in (run / "card.md").read_text()


def test_the_run_needs_no_other(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "tuned", tmp_path / "alone")
    hidden = made / "gpt-hidden"
    (made / "gpt").rename(hidden)
    try:
        model = seqloom.load(tmp_path / "alone")
        figures = model.evaluate("test")
        (one,) = model.choose("a warm, clever cast")
    finally:
        hidden.rename(made / "gpt")
    assert set(figures) >= {"loss", "accuracy", "macro_f1"}
    assert {said.label for said in one.candidates} == {"good", "bad"}
    assert isinstance("".join(model.generate("a warm", max_tokens=5)), str)


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_it_learns_with_the_language_model_as_it_is(made: Path, tmp_path: Path, kind: str) -> None:
    recipe = tune_recipe(made, made / kind, "train.steps=60", "train.evaluate_every=60", "train.lr=0.2")
    task = Task.prepare(recipe)
    batch = task.batch(1, 0)
    before = task.loss(task.model(), batch, None).value
    model = Run.open(trained(recipe, tmp_path / "new")).model("cpu")
    after = task.loss(model, batch, None).value
    assert after < before - (0.02 if kind == "gpt" else 0)  # an LSTM that was never trained hardly hears its input
    weights = tensors_from_file(made / kind / "model.safetensors")
    assert all(torch.equal(model.frozen.state_dict()[name], tensor) for name, tensor in weights.items())


def test_the_loss_is_of_the_label_and_the_end_alone(made: Path) -> None:
    task = Task.prepare(tune_recipe(made, made / "gpt"))
    batch, model = task.batch(1, 0), task.model().eval()
    said = [
        task.tokenizer.decode(targets[counted].tolist())
        for targets, counted in zip(batch["targets"], batch["counted"], strict=True)
    ]
    assert {text.strip() for text in said} == {"good", "bad"}
    last = batch["counted"].int().argmax(dim=1) + batch["counted"].sum(dim=1) - 1
    assert bool((batch["targets"].gather(1, last.unsqueeze(1)) == task.tokenizer.end).all())
    scores, _ = model.score(batch["inputs"], batch["targets"], model.start(rows=len(batch["inputs"])))
    assert task.loss(model, batch, None).value.item() == pytest.approx(
        -scores[batch["counted"]].mean().item(), abs=1e-6
    )


def test_evaluate_chooses_as_prompt_does(made: Path) -> None:
    model = seqloom.load(made / "tuned")
    task = model.task()
    examples = task.corpus.split("test")
    chosen = [one.label for one in model.choose([example.text for example in examples])]
    right = sum(label == example.label for label, example in zip(chosen, examples, strict=True))
    assert task.evaluate(model.model, "test")["accuracy"] == pytest.approx(right / len(examples))
    best = task.log_probs(model.model, "test").argmax(dim=1).tolist()
    assert [task.names[place] for place in best] == chosen


def test_a_resumed_tuning_ends_where_one_in_one_go_does(made: Path, tmp_path: Path) -> None:
    recipe = tune_recipe(made, made / "gpt")
    stop = Stop()
    for event in begin(recipe, tmp_path / "resumed").events(stop):
        if event.step == 15:
            stop.request()
    for _ in resume(tmp_path / "resumed").events():
        pass
    assert_same_checkpoints(tmp_path / "resumed", made / "tuned")


def test_a_mean_of_checkpoints_has_the_language_model_too(made: Path, tmp_path: Path) -> None:
    make_average([made / "tuned"], out=tmp_path / "mean", last=2)
    assert (tmp_path / "mean" / "frozen.safetensors").exists()
    assert seqloom.load(tmp_path / "mean").evaluate("test")["loss"] > 0


def test_long_texts_are_cut_so_that_the_label_has_room(made: Path, tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text(
        "review,verdict\n" + "".join(f'"{"dull " * 60}{n}",bad\n"a warm film {n}",good\n' for n in range(20))
    )
    task = Task.prepare(tune_recipe(tmp_path, made / "gpt", "batch.max_length=40"))
    assert any("only their beginning is read" in warning for warning in task.warnings())
    for example in task.prompts("train"):
        assert len(example.ids) < 40
        assert task.tokenizer.decode(example.ids).endswith((" = bad", " = good"))
    with pytest.raises(DataError, match="too few for the template"):
        Task.prepare(tune_recipe(tmp_path, made / "gpt", "batch.max_length=3")).steps_per_epoch()


def test_a_label_the_vocabulary_lacks(made: Path, tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match="does not have the label"):
        Task.prepare(tune_recipe(made, tmp_path / "toys"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["init.weights=false"], "init.weights must be true"),
        (["tokenizer.kind=words"], "leave the section out"),
        (['template="{text}"'], "must contain {text} and then {label}"),
        (["model.length=0"], "length: must be at least 1"),
        (["model.length=95"], "at most 94"),
        (["model.backbone.d_model=99"], "model.backbone.d_model is 99 here and 12 there"),
        (["init.from=nowhere"], "there is no run nowhere"),
    ],
)
def test_recipes_that_cannot_be(made: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(SeqloomError) as caught:
        tune_recipe(made, made / "gpt", *overrides)
    assert words in str(caught.value)


def test_what_is_no_language_model(made: Path) -> None:
    with pytest.raises(UsageError, match="must be a language model, of kind recurrent-lm or gpt; it is of kind bert"):
        tune_recipe(made, made / "bert")
    with pytest.raises(UsageError, match="cannot be fine-tuned: its model is of kind soft-prompt"):
        tune_recipe(made, made / "tuned")


def test_the_recipe_of_a_run_is_whole(made: Path) -> None:
    recipe = recipe_of(Run.open(made / "tuned"))
    assert recipe.model.backbone.kind == "gpt" and recipe.model.length == 3
    assert to_mapping(recipe)["init"] == {"from": str(made / "gpt"), "weights": True}


def test_other_texts_are_not_what_it_is_measured_on(made: Path) -> None:
    model: Any = seqloom.load(made / "tuned")
    with pytest.raises(UsageError, match="evaluated on texts with labels"):
        model.evaluate_documents(["a text"])
