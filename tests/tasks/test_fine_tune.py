"""Classification and tagging with a pretrained backbone: inputs, learning, and exact resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import KINDS, classify_mapping, classify_recipe, pretrained_run, tag_recipe, token_vectors
from tests.understanding import assert_same_checkpoints, trained

from seqloom.config import apply_overrides, parse_overrides
from seqloom.core.tokens import Specials
from seqloom.predict.loader import load
from seqloom.recipes import build_recipe
from seqloom.tasks import task_info
from seqloom.train.events import Progress, Stopped
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    for kind in KINDS:
        pretrained_run(folder / kind, kind)
    return folder


def prepared(recipe: Any) -> Any:
    return task_info(recipe.task).task.prepare(recipe)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_framed_by_special_tokens(runs: Path, tmp_path: Path, kind: str) -> None:
    task = prepared(classify_recipe(tmp_path, runs / kind))
    specials = Specials.after(len(task.tokenizer))
    around = {"bilm": (0, 0), "recurrent-lm": (0, specials.classify), "gpt": (0, specials.classify)}
    first, last = around.get(kind, (specials.classify, specials.separate))
    batch = task.batch(1, 0)
    ends = batch["mask"].sum(dim=1) - 1
    assert (batch["tokens"][:, 0] == first).all()
    assert (batch["tokens"].gather(1, ends.unsqueeze(1)) == last).all()
    texts = [task.tokenizer.decode(row[1:end].tolist()) for row, end in zip(batch["tokens"], ends, strict=True)]
    assert set(texts) <= set(task.plain_texts("train"))


def test_long_text_is_truncated_within_its_frame(runs: Path, tmp_path: Path) -> None:
    task = prepared(classify_recipe(tmp_path, runs / "bert", "batch.max_length=5"))
    batches = task.eval_batches("train")
    assert (batches.texts.lengths <= 5).all() and batches.cut == batches.was_cut.sum() == task.truncated_count() > 0
    assert "are longer than 5 tokens" in task.warnings()[-1]
    row = batches.texts.ids[batches.texts.starts[0] : batches.texts.starts[1]]
    specials = Specials.after(len(task.tokenizer))
    assert (row[0], row[-1]) == (specials.classify, specials.separate) and len(row) == 5
    assert (row[1:-1] < len(task.tokenizer)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_predicted_at_their_first_tokens(runs: Path, tmp_path: Path, kind: str) -> None:
    task = prepared(tag_recipe(tmp_path, runs / kind, "batch.max_length=8"))
    words, pieces = task.words("dev"), task.pieces("dev")
    assert len(pieces) > len(words)  # some sentences are split
    for members, batch in task.eval_batches("dev").all_batches():
        assert batch["tokens"].shape[1] <= 8
        for row, position in enumerate(members.tolist()):
            piece = pieces[position]
            for number, word in enumerate(words[piece.sentence][piece.start : piece.end]):
                first = int(batch["first"][row, number])
                token = task.tokenizer.decode([int(batch["tokens"][row, first])]).strip()
                assert word.startswith(token), (word, token)


RESUMED = {
    "classify": ["train.unfreeze_every=0.5", "train.layer_decay=0.8"],
    "with a language model": ["loss.language_model=0.5", "train.freeze=1"],
}


@pytest.mark.parametrize("case", RESUMED)
@pytest.mark.parametrize("kind", ["recurrent-lm", "gpt"])
def test_resumed_training_is_bit_identical(runs: Path, tmp_path: Path, kind: str, case: str) -> None:
    """Layers are unfrozen after the resume: an epoch has about 13 steps, and a group is unfrozen every 6 or 7 steps."""
    recipe = classify_recipe(tmp_path, runs / kind, *RESUMED[case], "train.steps=16", "model.backbone.dropout=0.1")
    uninterrupted = trained(recipe, tmp_path / "whole")
    stop, training = Stop(), begin(recipe, tmp_path / "parts")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step == 5:
            stop.request()
    assert isinstance(event, Stopped)
    for _ in resume(tmp_path / "parts").events():
        pass
    assert_same_checkpoints(uninterrupted, tmp_path / "parts")


@pytest.mark.parametrize("kind", KINDS)
def test_training_starts_with_the_weights_of_a_run(runs: Path, tmp_path: Path, kind: str) -> None:
    source = load(runs / kind).model.state_dict()
    source_vectors = token_vectors(kind, source)
    models = {}
    for weights in ("true", "false"):
        task = prepared(classify_recipe(tmp_path, runs / kind, f"init.weights={weights}"))
        torch.manual_seed(1)
        models[weights] = task.model().backbone.token_embedding().weight[: len(source_vectors)]
    assert torch.equal(models["true"], source_vectors)
    assert models["false"].shape == source_vectors.shape and not torch.equal(models["false"], source_vectors)


def test_from_scratch_baseline_may_have_a_new_tokenizer(runs: Path, tmp_path: Path) -> None:
    words = [
        "init=null",
        "tokenizer.kind=words",
        "model.backbone.kind=gpt",
        "model.backbone.d_model=8",
        "model.backbone.heads=2",
    ]
    mapping = apply_overrides(classify_mapping(tmp_path, runs / "gpt"), parse_overrides([*words, "train.steps=2"]))
    out = trained(build_recipe(mapping, "the recipe"), tmp_path / "out")
    result = load(out)
    assert result.tokenizer.kind == "words" and "init" not in result.run.data
    assert result.evaluate("dev")["loss"] > 0


def test_auxiliary_language_model_keeps_output_layer(runs: Path, tmp_path: Path) -> None:
    out = trained(classify_recipe(tmp_path, runs / "gpt", "loss.language_model=0.5", "train.steps=2"), tmp_path / "out")
    run = load(out).run
    assert run.sizes["outputs"] == len(run.tokenizer)
    assert run.model("cpu").backbone.output is not None
    monitor = load(out).task().monitor
    assert (monitor.unit, monitor.remark) == ("nats per text", "with language model")


@pytest.mark.parametrize("kind", KINDS)
def test_trained_classifier_is_accurate_and_explains_labels(runs: Path, tmp_path: Path, kind: str) -> None:
    """A model can be trained from random weights, and the run supports all predictions."""
    words = ["train.lr=0.01", "train.steps=60", "train.evaluate_every=60", "model.pooling=mean"]
    model = load(trained(classify_recipe(tmp_path, runs / kind, *words), tmp_path / "out"))
    assert model.evaluate("train")["accuracy"] > 0.9
    result = model.classify("a warm, funny film", why=True)[0]
    assert result.label == "good" and result.why is not None and result.why.kind == "influence"
    assert [word.text for word in result.why.words] == ["a", "warm", ",", "funny", "film"]
    batch = model.training_task.eval_batches("dev").batch(0, 0)
    alone = model.training_task.reader().batches(["a warm, funny film"], tokens=1).batch(0, 0)
    total = model.model.influence(alone).sum().item()
    assert sum(word.weight for word in result.why.words) + result.why.end == pytest.approx(total, abs=1e-4)
    assert model.model(batch).shape[1] == 2


def test_attention_is_shown_for_attention_pooling(runs: Path, tmp_path: Path) -> None:
    out = trained(
        classify_recipe(tmp_path, runs / "bert", "model.pooling=attention", "train.steps=2"), tmp_path / "out"
    )
    result = load(out).classify("a warm, funny film", why=True)[0]
    assert result.why is not None and result.why.kind == "attention"
    assert sum(word.weight for word in result.why.words) + result.why.end == pytest.approx(1, abs=1e-5)
