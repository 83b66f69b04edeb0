"""Transfer from a denoiser or a translator.

Classifiers and taggers use its encoder, and translators use the complete model.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checksums import update_checksums
from tests.denoising import denoise_recipe
from tests.fine_tuning import classify_recipe, tag_recipe
from tests.matching import recipe as matching_recipe
from tests.understanding import assert_same_checkpoints, trained

from seqloom.config import apply_overrides, parse_overrides
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import tensors_from_file
from seqloom.predict.loader import load
from seqloom.recipes import build_recipe
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.train.events import Progress, Stopped
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

PAIRS = [("The cats purr all day .", "day all purr cats"), ("They eat mice .", "mice eat"), ("owls hoot", "hoot owls")]
SMALL = {"kind": "recurrent-seq2seq", "hidden": 8, "embedding": 6, "encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a denoiser of each kind, and a recurrent translator."""
    folder = tmp_path_factory.mktemp("pretrained")
    for kind in ("spans", "bart"):
        trained(denoise_recipe(folder, f"noise.kind={kind}", "train.steps=3", "batch.dev_texts=0"), folder / kind)
    plain = {**mapping(folder, folder), "tokenizer": {"kind": "words"}, "model": SMALL}
    del plain["init"]
    trained(build_recipe(plain, "the recipe"), folder / "recurrent")
    return folder


def mapping(folder: Path, run: Path) -> dict[str, Any]:
    file = folder / "pairs.tsv"
    if not file.exists():
        file.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 8), encoding="utf-8")
    return {
        "task": "translate",
        "init": {"from": str(run)},
        "data": {"corpus": "parallel", "train": str(file), "dev": str(_dev(folder)), "test_fraction": 0},
        "batch": {"tokens": 64, "dev_pairs": 2},
        "train": {"steps": 4, "lr": 0.01, "evaluate_every": 2, "log_every": 1, "device": "cpu"},
    }


def _dev(folder: Path) -> Path:
    file = folder / "pairs-dev.tsv"
    file.write_text("The dogs bark .\tbark dogs\nThey eat bones .\tbones eat\n", encoding="utf-8")
    return file


def translate_recipe(folder: Path, run: Path, *overrides: str) -> Any:
    return build_recipe(apply_overrides(mapping(folder, run), parse_overrides(overrides)), "the recipe")


def prepared(recipe: Any) -> Any:
    return task_info(recipe.task).task.prepare(recipe)


@pytest.mark.parametrize("kind", ["spans", "bart", "recurrent"])
def test_translator_starts_with_the_weights_of_a_run(runs: Path, tmp_path: Path, kind: str) -> None:
    task = prepared(translate_recipe(tmp_path, runs / kind))
    torch.manual_seed(5)
    model = task.model()
    source_weights = tensors_from_file(runs / kind / "model.safetensors")
    weights = model.state_dict()
    assert weights.keys() == source_weights.keys()
    assert all(
        torch.equal(tensor, source_weights[name][: len(tensor)]) for name, tensor in weights.items() if tensor.dim()
    )
    assert len(model.output.weight) == len(task.tokenizer) <= len(source_weights["output.weight"])
    assert task.tokenizer.to_json() == Run.open(runs / kind).tokenizer.to_json()


def test_from_scratch_baseline_has_equal_shapes_but_other_weights(runs: Path, tmp_path: Path) -> None:
    task = prepared(translate_recipe(tmp_path, runs / "bart", "init.weights=false"))
    torch.manual_seed(5)
    weights = task.model().state_dict()
    source_weights = tensors_from_file(runs / "bart" / "model.safetensors")
    assert weights.keys() == source_weights.keys()
    assert not torch.equal(weights["output.weight"], source_weights["output.weight"][: len(task.tokenizer)])


def test_fine_tuned_translator_records_its_source(runs: Path, tmp_path: Path) -> None:
    run = trained(
        translate_recipe(tmp_path, runs / "spans", "model.kind=transformer", "model.dropout=0.3"), tmp_path / "run"
    )
    opened = Run.open(run)
    assert opened.recipe["model"]["d_model"] == 16 and opened.recipe["model"]["dropout"] == 0.3
    assert opened.data["init"]["from"] == str(runs / "spans") and len(opened.data["init"]["sha256"]) == 64
    (line,) = load(run).translate("The cats purr .")
    assert isinstance(line.text, str) and opened.sizes == {"vocabulary": len(opened.tokenizer)}
    again = prepared(translate_recipe(tmp_path, run))  # the resulting run can also be fine-tuned
    assert torch.equal(again.model().output.weight, tensors_from_file(run / "model.safetensors")["output.weight"])


def test_resumed_training_is_bit_identical(runs: Path, tmp_path: Path) -> None:
    recipe = translate_recipe(tmp_path, runs / "bart", "train.steps=6")
    uninterrupted, resumed = trained(recipe, tmp_path / "whole"), tmp_path / "parted"
    stop, events = Stop(), []
    for event in begin(recipe, resumed).events(stop):
        events.append(event)
        if isinstance(event, Progress) and event.step == 3:
            stop.request()
    assert isinstance(events[-1], Stopped)
    for _ in resume(resumed).events():
        pass
    assert_same_checkpoints(uninterrupted, resumed)


def test_incompatible_settings_are_reported(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"model\.d_model is 24, but 16 in the run; model\.heads is 3, but 2 in the run"
    ):
        translate_recipe(tmp_path, runs / "bart", "model.kind=transformer", "model.d_model=24", "model.heads=3")
    with pytest.raises(UsageError, match=r"tokenizer comes from the run in init\.from: leave the section out"):
        translate_recipe(tmp_path, runs / "bart", "tokenizer.kind=words")
    without = {key: value for key, value in mapping(tmp_path, runs).items() if key != "init"}
    with pytest.raises(UsageError, match=r"tokenizer: missing; it must be a section; or set init\.from"):
        build_recipe(without, "the recipe")
    with pytest.raises(CheckpointError, match="there is no run"):
        translate_recipe(tmp_path, tmp_path / "nowhere")


def test_run_of_other_kind_is_rejected(runs: Path, tmp_path: Path) -> None:
    run = trained(classify_recipe(tmp_path, runs / "bart", "train.steps=1"), tmp_path / "classifier")
    with pytest.raises(
        UsageError, match=r"cannot be trained further: .* kind fine-tuned-classifier\. Use .* transformer"
    ):
        translate_recipe(tmp_path, run)
    with pytest.raises(UsageError, match=r"cannot be fine-tuned: its model is of kind recurrent-seq2seq"):
        classify_recipe(tmp_path, runs / "recurrent")


def test_mismatched_weights_are_listed(runs: Path, tmp_path: Path) -> None:
    """The recipe of the run was edited."""
    other = tmp_path / "other"
    other.mkdir()
    for file in (runs / "bart").iterdir():
        if file.is_file():
            (other / file.name).write_bytes(file.read_bytes())
    text = (other / "recipe.yaml").read_text(encoding="utf-8")
    (other / "recipe.yaml").write_text(text.replace("decoder_layers: 1", "decoder_layers: 2"), encoding="utf-8")
    update_checksums(other)
    with pytest.raises(UsageError, match=r"do not match the model: decoder\.1\..* is missing; .* and \d+ more"):
        prepared(translate_recipe(tmp_path, other)).model()


@pytest.mark.parametrize("recipe_of", [classify_recipe, tag_recipe], ids=["classify", "tag"])
@pytest.mark.parametrize("kind", ["spans", "bart"])
def test_transferred_encoder_classifies_and_tags(runs: Path, tmp_path: Path, kind: str, recipe_of: Any) -> None:
    recipe = recipe_of(tmp_path, runs / kind, "train.steps=2", "train.evaluate_every=2")
    task = prepared(recipe)
    batch = task.batch(1, 0)
    assert (batch["tokens"][:, 0] == 0).all()
    source_weights = tensors_from_file(runs / kind / "model.safetensors")
    backbone = task.model().backbone
    assert torch.equal(backbone.encoder_norm.weight, source_weights["encoder_norm.weight"])
    vocabulary = len(task.tokenizer)
    assert torch.equal(
        backbone.token_embedding().weight[:vocabulary], source_weights["source_embed.embed.weight"][:vocabulary]
    )
    run = trained(recipe, tmp_path / "run")
    assert load(run).evaluate("dev")["loss"] > 0
    baseline = prepared(recipe_of(tmp_path, runs / kind, "init.weights=false")).model()
    assert not torch.equal(
        baseline.backbone.token_embedding().weight[:vocabulary],
        source_weights["source_embed.embed.weight"][:vocabulary],
    )


@pytest.mark.parametrize("task", ["pair", "score", "choice", "answer"])
def test_transferred_encoder_reads_pairs_choices_and_questions(runs: Path, tmp_path: Path, task: str) -> None:
    short = [f"init.from={runs / 'bart'}", "tokenizer=null", "train.steps=2", "train.evaluate_every=2"]
    config = matching_recipe(tmp_path, task, *short, "model.backbone=null")
    run = trained(config, tmp_path / "run")
    assert Run.open(run).recipe["model"]["backbone"]["kind"] == "start-token-transformer"
    assert load(run).evaluate("dev")["loss"] > 0
