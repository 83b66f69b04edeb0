"""Instruction tuning: what is learned of an example, and what comes of it."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.fine_tuning import pretrained_run
from tests.prompted import instruct_mapping, instruct_recipe, wide_gpt, write_instructions
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
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("instructed")
    wide_gpt(folder / "gpt")
    pretrained_run(folder / "lstm", "recurrent-lm")
    pretrained_run(folder / "bert", "bert")
    trained(instruct_recipe(folder, folder / "gpt", "train.steps=160", "train.evaluate_every=80"), folder / "done")
    return folder


def test_the_loss_is_of_the_answers_alone(made: Path) -> None:
    task = Task.prepare(instruct_recipe(made, made / "gpt"))
    model, batch = task.model().eval(), task.batch(1, 0)
    answers = {one.output for one in task.corpus.split("train")}
    for targets, counted in zip(batch["targets"], batch["counted"], strict=True):
        assert task.tokenizer.decode(targets[counted].tolist()).strip() in answers
        assert targets[counted][-1] == task.tokenizer.end
    own = task.loss(model, batch, None).value
    other = {**batch, "targets": torch.where(batch["counted"], batch["targets"], 5)}
    assert torch.equal(task.loss(model, other, None).value, own)  # what the question's tokens are predicted as
    answered = {**batch, "targets": torch.where(batch["counted"], 5, batch["targets"])}
    assert not torch.equal(task.loss(model, answered, None).value, own)  # the control
    scores, _ = model.score(batch["inputs"], batch["targets"], model.start(rows=len(batch["inputs"])))
    assert own.item() == pytest.approx(-scores[batch["counted"]].mean().item(), abs=1e-5)


def test_it_begins_with_the_weights_of_the_run(made: Path) -> None:
    then = tensors_from_file(made / "gpt" / "model.safetensors")
    task = Task.prepare(instruct_recipe(made, made / "gpt"))
    assert all(torch.equal(tensor, then[name]) for name, tensor in task.model().state_dict().items())
    fresh = Task.prepare(instruct_recipe(made, made / "gpt", "init.weights=false")).model().state_dict()
    assert not torch.equal(fresh["backbone.embedded.embed.weight"], then["backbone.embedded.embed.weight"])


def test_it_learns_and_answers(made: Path) -> None:
    task = Task.prepare(instruct_recipe(made, made / "gpt"))
    before = task.evaluate(task.model().eval(), "dev")
    model = seqloom.load(made / "done")
    after = model.evaluate("dev")
    assert after["loss"] < before["loss"] / 2
    assert set(after) == {"loss", "perplexity", "exact"}
    assert model.own_template == "do {text}\n= {label}"  # by which it is asked
    asked = [one for one in task.corpus.split("train") if not one.input][:8]
    written = [one.written for one in model.complete([one.instruction for one in asked])]
    assert sum(said == one.output for said, one in zip(written, asked, strict=True)) >= 6
    (picked,) = model.choose(asked[0].instruction, ["zebra crossing", asked[0].output])
    assert picked.label == asked[0].output


def test_exact_is_what_greedy_search_would_say(made: Path) -> None:
    model = seqloom.load(made / "done")
    task = model.task()
    examples = task.corpus.split("test")
    said = []
    for one in examples:
        lines = ["do " + one.instruction, *(["to " + one.input] if one.input else []), "="]
        text = "".join(model.generate("\n".join(lines), temperature=0.0, max_tokens=20))
        said.append(text == " " + one.output)
    assert model.evaluate("test")["exact"] == pytest.approx(sum(said) / len(said))


def test_a_resumed_training_ends_where_one_in_one_go_does(made: Path, tmp_path: Path) -> None:
    recipe, stop = instruct_recipe(made, made / "lstm"), Stop()
    trained(recipe, tmp_path / "one-go")
    for event in begin(recipe, tmp_path / "resumed").events(stop):
        if event.step == 15:
            stop.request()
    for _ in resume(tmp_path / "resumed").events():
        pass
    assert_same_checkpoints(tmp_path / "resumed", tmp_path / "one-go")


def test_the_run_needs_no_other(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "done", tmp_path / "alone")
    (made / "gpt").rename(made / "hidden")
    try:
        assert seqloom.load(tmp_path / "alone").evaluate("test")["loss"] > 0
        assert Run.open(tmp_path / "alone").data["init"]["kind"] == "gpt"
    finally:
        (made / "hidden").rename(made / "gpt")


def test_long_examples_are_cut_before_their_answer(made: Path, tmp_path: Path) -> None:
    long = [{"instruction": f"Say {n} " + "dull " * 50, "input": "warm " * 50, "output": "good"} for n in range(40)]
    write_instructions(tmp_path / "mine.jsonl", [{**one} for one in long])
    task = Task.prepare(instruct_recipe(tmp_path, made / "gpt", "batch.max_length=60"))
    assert any("are longer than 60 tokens" in warning for warning in task.warnings())
    for example in task.prompts("train"):
        assert len(example.ids) < 60 and example.cut
        assert task.tokenizer.decode(example.ids).endswith("= good")
    write_instructions(
        tmp_path / "mine.jsonl", [{"instruction": f"Say {n}", "output": "dull " * 99} for n in range(40)]
    )
    with pytest.raises(DataError, match="must fit in 60 tokens"):
        Task.prepare(instruct_recipe(tmp_path, made / "gpt", "batch.max_length=60")).steps_per_epoch()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.d_model=99"], "model.d_model is 99 here and 12 there"),
        (['template="{instruction}"'], "and last {output}"),
        (['template="{instruction} {answer} {output}"'], "no other braces"),
        (["tokenizer.kind=words"], "leave the section out"),
        (["batch.max_length=2"], "max_length: must be at least 8"),
        (["init.from=nowhere"], "there is no run nowhere"),
    ],
)
def test_recipes_that_cannot_be(made: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(SeqloomError) as caught:
        instruct_recipe(made, made / "gpt", *overrides)
    assert words in str(caught.value)


def test_a_recipe_without_a_run_to_begin_with(made: Path) -> None:
    mapping = {key: value for key, value in instruct_mapping(made, made / "gpt").items() if key != "init"}
    with pytest.raises(UsageError, match="init: missing"):
        build_recipe(mapping, "the recipe")
    with pytest.raises(UsageError, match="must be a language model, of kind recurrent-lm or gpt; it is of kind bert"):
        instruct_recipe(made, made / "bert")


def test_weights_that_are_not_there_yet(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "gpt", tmp_path / "young")
    (tmp_path / "young" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors yet"):
        Task.prepare(instruct_recipe(made, tmp_path / "young"))
