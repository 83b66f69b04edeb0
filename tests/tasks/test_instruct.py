"""Instruction tuning: loss, responses, resume and errors."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.fine_tuning import pretrained_run
from tests.prompt_recipes import instruct_mapping, instruct_recipe, wide_gpt, write_instructions
from tests.understanding import assert_same_checkpoints, trained

import seqloom
from seqloom.core.errors import CheckpointError, DataError, SeqloomError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.recipes import build_recipe
from seqloom.runs.run import Run
from seqloom.tasks.instruct import Task
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("instructed")
    wide_gpt(folder / "gpt")
    pretrained_run(folder / "lstm", "recurrent-lm")
    pretrained_run(folder / "bert", "bert")
    trained(instruct_recipe(folder, folder / "gpt", "train.steps=160", "train.evaluate_every=80"), folder / "done")
    return folder


def test_loss_covers_only_responses(folder: Path) -> None:
    task = Task.prepare(instruct_recipe(folder, folder / "gpt"))
    model, batch = task.model().eval(), task.batch(1, 0)
    answers = {example.output for example in task.corpus.split("train")}
    for targets, counted in zip(batch["targets"], batch["counted"], strict=True):
        assert task.tokenizer.decode(targets[counted].tolist()).strip() in answers
        assert targets[counted][-1] == task.tokenizer.end
    loss = task.loss(model, batch, None).value
    other = {**batch, "targets": torch.where(batch["counted"], batch["targets"], 5)}
    assert torch.equal(
        task.loss(model, other, None).value, loss
    )  # predictions within the instruction do not affect the loss
    answered = {**batch, "targets": torch.where(batch["counted"], 5, batch["targets"])}
    assert not torch.equal(task.loss(model, answered, None).value, loss)  # control
    scores, _ = model.score(batch["inputs"], batch["targets"], model.start(rows=len(batch["inputs"])))
    assert loss.item() == pytest.approx(-scores[batch["counted"]].mean().item(), abs=1e-5)


def test_training_starts_with_the_weights_of_a_run(folder: Path) -> None:
    then = tensors_from_file(folder / "gpt" / "model.safetensors")
    task = Task.prepare(instruct_recipe(folder, folder / "gpt"))
    assert all(torch.equal(tensor, then[name]) for name, tensor in task.model().state_dict().items())
    fresh = Task.prepare(instruct_recipe(folder, folder / "gpt", "init.weights=false")).model().state_dict()
    assert not torch.equal(fresh["backbone.embedded.embed.weight"], then["backbone.embedded.embed.weight"])


def test_training_halves_the_loss_and_model_responds(folder: Path) -> None:
    task = Task.prepare(instruct_recipe(folder, folder / "gpt"))
    before = task.evaluate(task.model().eval(), "dev")
    model = seqloom.load(folder / "done")
    after = model.evaluate("dev")
    assert after["loss"] < before["loss"] / 2
    assert set(after) == {"loss", "perplexity", "exact"}
    assert model.training_template == "do {text}\n= {label}"  # the template of the prompt
    examples = [example for example in task.corpus.split("train") if not example.input][:8]
    written = [result.completion for result in model.complete([example.instruction for example in examples])]
    assert sum(text == example.output for text, example in zip(written, examples, strict=True)) >= 6
    (picked,) = model.choose(examples[0].instruction, ["zebra crossing", examples[0].output])
    assert picked.label == examples[0].output


def test_exact_match_is_computed_from_greedy_search(folder: Path) -> None:
    model = seqloom.load(folder / "done")
    task = model.task()
    examples = task.corpus.split("test")
    correct = []
    for example in examples:
        lines = ["do " + example.instruction, *(["to " + example.input] if example.input else []), "="]
        text = model.generate("\n".join(lines), temperature=0.0, max_tokens=20)
        correct.append(text == " " + example.output)
    assert model.evaluate("test")["exact"] == pytest.approx(sum(correct) / len(correct))


def test_resumed_training_is_bit_identical(folder: Path, tmp_path: Path) -> None:
    recipe, stop = instruct_recipe(folder, folder / "lstm"), Stop()
    trained(recipe, tmp_path / "one-go")
    for event in begin(recipe, tmp_path / "resumed").events(stop):
        if event.step == 15:
            stop.request()
    for _ in resume(tmp_path / "resumed").events():
        pass
    assert_same_checkpoints(tmp_path / "resumed", tmp_path / "one-go")


def test_run_is_self_contained(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "done", tmp_path / "alone")
    (folder / "gpt").rename(folder / "hidden")
    try:
        assert seqloom.load(tmp_path / "alone").evaluate("test")["loss"] > 0
        assert Run.open(tmp_path / "alone").data["init"]["kind"] == "gpt"
    finally:
        (folder / "hidden").rename(folder / "gpt")


def test_long_examples_are_truncated_before_response(folder: Path, tmp_path: Path) -> None:
    long = [{"instruction": f"Say {n} " + "dull " * 50, "input": "warm " * 50, "output": "good"} for n in range(40)]
    write_instructions(tmp_path / "mine.jsonl", [{**completion} for completion in long])
    task = Task.prepare(instruct_recipe(tmp_path, folder / "gpt", "batch.max_length=60"))
    assert any("are longer than 60 tokens" in warning for warning in task.warnings())
    for example in task.prompts("train"):
        assert len(example.ids) < 60 and example.cut
        assert task.tokenizer.decode(example.ids).endswith("= good")
    write_instructions(
        tmp_path / "mine.jsonl", [{"instruction": f"Say {n}", "output": "dull " * 99} for n in range(40)]
    )
    with pytest.raises(DataError, match="must fit in 60 tokens"):
        Task.prepare(instruct_recipe(tmp_path, folder / "gpt", "batch.max_length=60")).steps_per_epoch()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.d_model=99"], "model.d_model is 99, but 12 in the run"),
        (['template="{instruction}"'], "and last {output}"),
        (['template="{instruction} {answer} {output}"'], "no other braces"),
        (["tokenizer.kind=words"], "leave the section out"),
        (["batch.max_length=2"], "max_length: must be at least 8"),
        (["init.from=nowhere"], "there is no run nowhere"),
    ],
)
def test_invalid_recipe_is_rejected(folder: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(SeqloomError) as caught:
        instruct_recipe(folder, folder / "gpt", *overrides)
    assert words in str(caught.value)


def test_recipe_without_source_run_is_rejected(folder: Path) -> None:
    mapping = {key: value for key, value in instruct_mapping(folder, folder / "gpt").items() if key != "init"}
    with pytest.raises(UsageError, match="init: missing"):
        build_recipe(mapping, "the recipe")
    with pytest.raises(UsageError, match="must be a language model, of kind recurrent-lm or gpt; it is of kind bert"):
        instruct_recipe(folder, folder / "bert")


def test_missing_weights_are_reported(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "gpt", tmp_path / "young")
    (tmp_path / "young" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors yet"):
        Task.prepare(instruct_recipe(folder, tmp_path / "young"))
