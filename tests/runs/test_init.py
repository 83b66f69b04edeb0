"""Training that starts from another run (`init.from`): filled-in settings, conflicts, and invalid sources."""

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
    """Train a pretrained run of each kind. Its folder has the name of the kind."""
    folder = tmp_path_factory.mktemp("pretrained")
    for kind in KINDS:
        pretrained_run(folder / kind, kind)
    return folder


def test_source_run_is_set_with_the_key_from() -> None:
    config = build(InitConfig, {"from": "runs/x"})
    assert config == InitConfig(from_="runs/x")
    assert to_mapping(config) == {"from": "runs/x", "weights": True, "lora": None}
    with pytest.raises(UsageError, match="from: missing"):
        build(InitConfig, {})
    with pytest.raises(UsageError, match=r"form: no such key; did you mean from\?"):
        build(InitConfig, {"form": "runs/x"})
    with pytest.raises(UsageError, match="from: must be a string"):
        build(InitConfig, {"from": 3})


@pytest.mark.parametrize("kind", KINDS)
def test_backbone_is_filled_in_from_run(runs: Path, tmp_path: Path, kind: str) -> None:
    recipe = classify_recipe(tmp_path, runs / kind)
    assert to_mapping(recipe.model.backbone) == Run.open(runs / kind).recipe["model"]
    assert recipe.tokenizer is None
    assert build_recipe(to_mapping(recipe), "again") == recipe  # the filled-in recipe is valid


def test_settings_without_weights_may_differ(runs: Path, tmp_path: Path) -> None:
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


def test_every_conflicting_setting_is_reported(runs: Path, tmp_path: Path) -> None:
    words = [
        "model.backbone.layers=4",
        "model.backbone.d_model=16",
        "model.backbone.positions.max_length=64",
        "model.backbone.dropout=0.3",
    ]
    with pytest.raises(UsageError, match=r"backbone must match the backbone of init\.from") as caught:
        classify_recipe(tmp_path, runs / "bert", *words)
    for text in (
        "model.backbone.layers is 4, but 2 in the run",
        "d_model is 16, but 12 in the run",
        "max_length is 64, but 32 in the run",
    ):
        assert text in str(caught.value)
    assert "dropout" not in str(caught.value)


def test_unknown_key_is_rejected(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"model\.backbone\.laiers: no such key; did you mean model\.backbone\.layers\?"
    ):
        classify_recipe(tmp_path, runs / "bert", "model.backbone.laiers=4", "model.pooling=mode")


def test_missing_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"init\.from: there is no run .*nowhere\. Train one first"):
        classify_recipe(tmp_path, tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"`seqloom train lm-char-lstm`"):
        classify_recipe(tmp_path, tmp_path / "lm-char-lstm")
    with pytest.raises(CheckpointError, match="is not a run: it has no recipe"):
        classify_recipe(tmp_path, tmp_path)


@pytest.mark.parametrize("model", [{"kind": "ngram", "order": 3}, {"kind": "classifier"}, {}])
def test_model_without_backbone_is_rejected(tmp_path: Path, model: dict[str, Any]) -> None:
    Run.create(tmp_path / "other", {"task": "ngram", "model": model}, {})
    with pytest.raises(UsageError, match=rf"other cannot be fine-tuned: its model is of kind {model.get('kind')}"):
        classify_recipe(tmp_path, tmp_path / "other")


def test_run_without_weights_is_rejected(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "gpt", tmp_path / "gpt")
    (tmp_path / "gpt" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors yet.*init\.weights=false"):
        begin(classify_recipe(tmp_path, tmp_path / "gpt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    begin(classify_recipe(tmp_path, tmp_path / "gpt", "init.weights=false"), tmp_path / "out")


def test_mismatched_weights_are_rejected_at_start(runs: Path, tmp_path: Path) -> None:
    """The recipe of the source run was edited, so it contradicts the weights."""
    shutil.copytree(runs / "gpt", tmp_path / "gpt")
    recipe = tmp_path / "gpt" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("layers: 2", "layers: 3"))
    update_checksums(tmp_path / "gpt")
    training = begin(classify_recipe(tmp_path, tmp_path / "gpt"), tmp_path / "out")
    with pytest.raises(UsageError, match=r"do not match the backbone: backbone\.blocks\.2\..* is missing.*more"):
        next(training.events())


def test_conflicting_sections_are_rejected(runs: Path, tmp_path: Path) -> None:
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


def test_recipe_without_backbone_is_unchanged() -> None:
    plain = {"task": "classify", "init": {"from": "nowhere"}, "model": {"kind": "classifier"}}
    assert fill_in(plain) == plain
    assert fill_in({"init": 3, "model": None}) == {"init": 3, "model": None}


def test_rows_are_limited_to_backbone_length(runs: Path, tmp_path: Path) -> None:
    recipes = {kind: classify_recipe(tmp_path, runs / kind, "batch.max_length=100") for kind in KINDS}
    lengths = {kind: max_row_length(recipe) for kind, recipe in recipes.items()}
    assert lengths == {kind: 100 if "hidden" in SHAPES[kind] else 32 for kind in KINDS}
    assert max_row_length(classify_recipe(tmp_path, runs / "gpt", "batch.max_length=null")) == 32


# --- records in the run -----------------------------------------------------------------------------------------------


def test_data_and_card_name_the_source(runs: Path, tmp_path: Path) -> None:
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
        f"started from the weights of `gpt`, a `gpt` model of text (sha256 {init['sha256'][:16]}"
        in (out / "card.md").read_text()
    )
    from_scratch = trained(
        classify_recipe(tmp_path, runs / "gpt", "train.steps=2", "init.weights=false"), tmp_path / "from-scratch"
    )
    assert "but random initial weights" in (from_scratch / "card.md").read_text()


def test_run_opens_without_its_source(runs: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(runs / "bert", tmp_path / "bert"))
    out = trained(tag_recipe(tmp_path, source, "train.steps=2", "train.evaluate_every=1"), tmp_path / "out")
    shutil.rmtree(source)
    tagger = load(out)
    assert tagger.evaluate("dev")["loss"] > 0
    assert len(tagger.tag("Ann sings")[0].words) == 2
    for _ in resume(out, ["train.steps=3"]).events():  # a checkpoint contains all weights
        pass
    assert average(out, last=2, out=tmp_path / "mean").evaluate("dev")["loss"] > 0


def test_resuming_without_checkpoint_needs_unchanged_source(runs: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(runs / "gpt", tmp_path / "gpt"))
    recipe = classify_recipe(tmp_path, source, "train.steps=2")
    run = begin(recipe, tmp_path / "out").run  # simulates a process that was killed before its first checkpoint
    uninterrupted = trained(recipe, tmp_path / "uninterrupted")
    for _ in resume(run.path).events():
        pass
    assert (run.path / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()
    late = begin(recipe, tmp_path / "late").run
    shutil.copy(pretrained_run(tmp_path / "other", "gpt", layers=1) / "model.safetensors", source)
    with pytest.raises(CheckpointError, match="have changed, and it has no checkpoint"):
        next(resume(late.path).events())


def test_fine_tuned_classifier_has_no_language_model(runs: Path, tmp_path: Path) -> None:
    backbone = pretrained_run(
        tmp_path / "gpt", "gpt", tied=False
    )  # a tied output layer without bias has no separate weights
    first = trained(classify_recipe(tmp_path, backbone, "train.steps=1"), tmp_path / "first")
    again = begin(classify_recipe(tmp_path, first, "loss.language_model=0.5"), tmp_path / "second").task
    with pytest.raises(UsageError, match=r"output\.weight is missing; loss\.language_model needs the output layer"):
        again.model()


def test_fine_tuned_run_can_be_fine_tuned_again(runs: Path, tmp_path: Path) -> None:
    first = trained(classify_recipe(tmp_path, runs / "bert", "train.steps=3"), tmp_path / "first")
    task = begin(tag_recipe(tmp_path, first), tmp_path / "second").task
    one, two = load(first).model.backbone.state_dict(), task.model().backbone.state_dict()
    assert all((one[name] == two[name]).all() for name in one)
