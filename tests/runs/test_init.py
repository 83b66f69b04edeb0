"""Beginning with a run: what is filled in, what must agree, what cannot be begun with."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.checksums import update_checksums
from tests.fine_tuning import KINDS, SHAPES, classify_recipe, pretrained_run, tag_recipe
from tests.understanding import trained

from seqloom.config import build, to_mapping
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.models import InitConfig
from seqloom.predict.ensembles import average
from seqloom.predict.loader import load
from seqloom.recipes import build_recipe
from seqloom.runs.run import Run
from seqloom.runs.transfer import Pretrained, fill_in
from seqloom.tasks.reading_base import max_row_length
from seqloom.training import begin, resume


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained run of each kind, by its name."""
    folder = tmp_path_factory.mktemp("pretrained")
    for kind in KINDS:
        pretrained_run(folder / kind, kind)
    return folder


def test_the_key_is_from_in_a_recipe() -> None:
    made = build(InitConfig, {"from": "runs/x"})
    assert made == InitConfig(from_="runs/x") and to_mapping(made) == {"from": "runs/x", "weights": True}
    with pytest.raises(UsageError, match="from: missing"):
        build(InitConfig, {})
    with pytest.raises(UsageError, match=r"form: no such key; did you mean from\?"):
        build(InitConfig, {"form": "runs/x"})
    with pytest.raises(UsageError, match="from: must be text"):
        build(InitConfig, {"from": 3})


@pytest.mark.parametrize("kind", KINDS)
def test_the_body_is_that_of_the_run(runs: Path, tmp_path: Path, kind: str) -> None:
    recipe = classify_recipe(tmp_path, runs / kind)
    assert to_mapping(recipe.model.backbone) == Run.open(runs / kind).recipe["model"]
    assert recipe.tokenizer is None
    assert build_recipe(to_mapping(recipe), "again") == recipe  # what is filled in agrees with itself


def test_what_changes_no_weight_may_be_another(runs: Path, tmp_path: Path) -> None:
    recipe = classify_recipe(
        tmp_path, runs / "gpt", "model.backbone.dropout=0.3", "model.backbone.attention_dropout=0.2"
    )
    assert (recipe.model.backbone.dropout, recipe.model.backbone.attention_dropout, recipe.model.backbone.layers) == (
        0.3,
        0.2,
        2,
    )
    same = classify_recipe(tmp_path, runs / "gpt", "model.backbone.positions.max_length=32")
    assert same.model.backbone.positions.kind == "learned"


def test_every_disagreement_is_named(runs: Path, tmp_path: Path) -> None:
    words = [
        "model.backbone.layers=4",
        "model.backbone.d_model=16",
        "model.backbone.positions.max_length=64",
        "model.backbone.dropout=0.3",
    ]
    with pytest.raises(UsageError, match=r"backbone must be that of init\.from") as caught:
        classify_recipe(tmp_path, runs / "bert", *words)
    for said in (
        "model.backbone.layers is 4 here and 2 there",
        "d_model is 16 here and 12",
        "max_length is 64 here and 32",
    ):
        assert said in str(caught.value)
    assert "dropout" not in str(caught.value)


def test_an_unknown_key_is_refused_with_the_recipe(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"model\.backbone\.laiers: no such key; did you mean model\.backbone\.layers\?"
    ):
        classify_recipe(tmp_path, runs / "bert", "model.backbone.laiers=4", "model.pooling=mode")


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"init\.from: there is no run .*nowhere\. Train one first"):
        classify_recipe(tmp_path, tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"`seqloom train lm-char-lstm`"):
        classify_recipe(tmp_path, tmp_path / "lm-char-lstm")
    with pytest.raises(CheckpointError, match="is not a run: it has no recipe"):
        classify_recipe(tmp_path, tmp_path)


@pytest.mark.parametrize("model", [{"kind": "ngram", "order": 3}, {"kind": "classifier"}, {}])
def test_what_cannot_be_a_body(tmp_path: Path, model: dict[str, Any]) -> None:
    Run.create(tmp_path / "other", {"task": "ngram", "model": model}, {})
    with pytest.raises(UsageError, match=rf"other cannot be fine-tuned: its model is of kind {model.get('kind')}"):
        classify_recipe(tmp_path, tmp_path / "other")


def test_a_run_without_weights(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "gpt", tmp_path / "gpt")
    (tmp_path / "gpt" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors yet.*init\.weights=false"):
        begin(classify_recipe(tmp_path, tmp_path / "gpt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    begin(classify_recipe(tmp_path, tmp_path / "gpt", "init.weights=false"), tmp_path / "out")


def test_weights_that_do_not_fit_are_refused_when_the_training_begins(runs: Path, tmp_path: Path) -> None:
    """Only a run that was changed by hand gets there: its recipe and its weights disagree."""
    shutil.copytree(runs / "gpt", tmp_path / "gpt")
    recipe = tmp_path / "gpt" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("layers: 2", "layers: 3"))
    update_checksums(tmp_path / "gpt")
    training = begin(classify_recipe(tmp_path, tmp_path / "gpt"), tmp_path / "out")
    with pytest.raises(UsageError, match=r"do not fit the backbone: backbone\.blocks\.2\..* is missing.*more"):
        next(training.events())


def test_sections_that_do_not_go_together(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer comes from the run in init\.from"):
        classify_recipe(tmp_path, runs / "gpt", "tokenizer.kind=words")
    with pytest.raises(UsageError, match="tokenizer: missing") as caught:
        classify_recipe(tmp_path, runs / "gpt", "init=null")
    assert "model.backbone: missing; it must be a section of kind recurrent-lm, gpt, bert" in str(caught.value)
    with pytest.raises(UsageError, match=r"init needs a model with a backbone.*got model\.kind classifier"):
        classify_recipe(tmp_path, runs / "gpt", "model.kind=classifier")
    with pytest.raises(UsageError, match="bert does not: it is bidirectional"):
        classify_recipe(tmp_path, runs / "bert", "loss.language_model=0.5")
    with pytest.raises(UsageError, match="max_length must be at least 3"):
        classify_recipe(tmp_path, runs / "bert", "batch.max_length=2")


def test_what_has_no_body_is_left_alone() -> None:
    plain = {"task": "classify", "init": {"from": "nowhere"}, "model": {"kind": "classifier"}}
    assert fill_in(plain) == plain
    assert fill_in({"init": 3, "model": None}) == {"init": 3, "model": None}


def test_no_more_is_read_than_the_body_was_made_for(runs: Path, tmp_path: Path) -> None:
    recipes = {kind: classify_recipe(tmp_path, runs / kind, "batch.max_length=100") for kind in KINDS}
    lengths = {kind: max_row_length(recipe) for kind, recipe in recipes.items()}
    assert lengths == {kind: 100 if "hidden" in SHAPES[kind] else 32 for kind in KINDS}
    assert max_row_length(classify_recipe(tmp_path, runs / "gpt", "batch.max_length=null")) == 32


# --- what a run remembers ---------------------------------------------------------------------------------------------


def test_data_and_card_say_where_it_came_from(runs: Path, tmp_path: Path) -> None:
    out = trained(classify_recipe(tmp_path, runs / "gpt", "train.steps=2"), tmp_path / "out")
    init = json.loads((out / "data.json").read_text())["init"]
    assert init == {
        "from": str(runs / "gpt"),
        "kind": "gpt",
        "corpus": "text",
        "weights": True,
        "sha256": Pretrained.open(runs / "gpt").sha256,
    }
    assert (
        f"started from the weights of `{runs / 'gpt'}`, a gpt of text (sha256 {init['sha256'][:16]}"
        in (out / "card.md").read_text()
    )
    twin = trained(classify_recipe(tmp_path, runs / "gpt", "train.steps=2", "init.weights=false"), tmp_path / "twin")
    assert "but random initial weights" in (twin / "card.md").read_text()


def test_a_run_needs_no_other_to_be_opened(runs: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(runs / "bert", tmp_path / "bert"))
    out = trained(tag_recipe(tmp_path, source, "train.steps=2", "train.evaluate_every=1"), tmp_path / "out")
    shutil.rmtree(source)
    tagger = load(out)
    assert tagger.evaluate("dev")["loss"] > 0
    assert len(next(tagger.tag("Ann sings")).words) == 2
    for _ in resume(out, ["train.steps=3"]).events():  # a checkpoint has all that goes on
        pass
    assert average(out, last=2, out=tmp_path / "mean").evaluate("dev")["loss"] > 0


def test_without_a_checkpoint_the_source_is_needed_as_it_was(runs: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(runs / "gpt", tmp_path / "gpt"))
    recipe = classify_recipe(tmp_path, source, "train.steps=2")
    run = begin(recipe, tmp_path / "out").run  # killed before its first checkpoint
    whole = trained(recipe, tmp_path / "whole")
    for _ in resume(run.path).events():
        pass
    assert (run.path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    late = begin(recipe, tmp_path / "late").run
    shutil.copy(pretrained_run(tmp_path / "other", "gpt", layers=1) / "model.safetensors", source)
    with pytest.raises(CheckpointError, match="have changed, and it has no checkpoint"):
        next(resume(late.path).events())


def test_what_was_fine_tuned_without_a_next_token_has_none_to_give(runs: Path, tmp_path: Path) -> None:
    backbone = pretrained_run(tmp_path / "gpt", "gpt", tied=False)  # tied and without a bias there is nothing to miss
    first = trained(classify_recipe(tmp_path, backbone, "train.steps=1"), tmp_path / "first")
    again = begin(classify_recipe(tmp_path, first, "loss.language_model=0.5"), tmp_path / "second").task
    with pytest.raises(UsageError, match=r"output\.weight is missing; loss\.language_model needs the output layer"):
        again.model()


def test_what_was_fine_tuned_can_be_fine_tuned_again(runs: Path, tmp_path: Path) -> None:
    first = trained(classify_recipe(tmp_path, runs / "bert", "train.steps=3"), tmp_path / "first")
    task = begin(tag_recipe(tmp_path, first), tmp_path / "second").task
    one, two = load(first).model.backbone.state_dict(), task.model().backbone.state_dict()
    assert all((one[name] == two[name]).all() for name in one)
