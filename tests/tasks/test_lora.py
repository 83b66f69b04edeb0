"""LoRA (`init.lora`): the equation, frozen weights, saved models, exact resume, averages, and rejected recipes."""

from pathlib import Path

import pytest
import torch
from tests.fine_tuning import classify_recipe, pretrained_run, tag_recipe
from tests.tasks.test_fine_tune import prepared
from tests.understanding import assert_same_checkpoints, trained
from torch import nn

from seqloom.core.errors import UsageError
from seqloom.nn.lora import LoRALinear, add_lora, merge_lora, without_lora
from seqloom.predict.ensembles import average
from seqloom.predict.loader import load
from seqloom.runs.run import Run
from seqloom.train.events import Progress, Started
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

LORA = ("init.lora.rank=3", "init.lora.alpha=6")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    for kind in ("bert", "gpt", "recurrent-lm"):
        pretrained_run(folder / kind, kind)
    return folder


@pytest.mark.parametrize("bias", [True, False])
def test_layer_adds_a_scaled_product_of_two_matrices(bias: bool) -> None:
    torch.manual_seed(1)
    plain = nn.Linear(5, 4, bias)
    layer = LoRALinear(plain, rank=2, scale=1.5)
    x = torch.randn(3, 7, 5)
    assert torch.equal(layer(x), plain(x))  # B is 0
    nn.init.normal_(layer.lora_B)
    expected = plain(x) + 1.5 * torch.einsum("or,ri,bti->bto", layer.lora_B, layer.lora_A, x)
    torch.testing.assert_close(layer(x), expected)


def test_merged_model_computes_the_same_outputs() -> None:
    torch.manual_seed(2)
    model = nn.ModuleDict(
        {"q": nn.Linear(4, 4), "other": nn.Linear(4, 4), "inner": nn.ModuleDict({"up": nn.Linear(4, 6)})}
    )
    names = list(model.state_dict())
    add_lora(model, ("q", "up"), 2, 0.5)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    merged, x = without_lora(model), torch.randn(9, 4)
    assert list(merged.state_dict()) == names and type(merged.get_submodule("q")) is nn.Linear
    for name in ("q", "inner.up"):
        torch.testing.assert_close(merged.get_submodule(name)(x), model.get_submodule(name)(x))
    before, after = model.state_dict(), merged.state_dict()
    assert torch.equal(after["other.weight"], before["other.weight"])
    assert not torch.equal(after["q.weight"], before["q.weight"])
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trainable == ["q.lora_A", "q.lora_B", "inner.up.lora_A", "inner.up.lora_B"]


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_only_updates_and_the_output_layer_are_trained(runs: Path, tmp_path: Path, kind: str) -> None:
    run = trained(
        classify_recipe(tmp_path, runs / kind, *LORA, "init.lora.targets=[q,v]", "train.steps=12"), tmp_path / "run"
    )
    model = load(run).model
    before = prepared(classify_recipe(tmp_path, runs / kind)).model().backbone.state_dict()
    after = model.backbone.state_dict()
    changed = {name for name in after if name in before and not torch.equal(after[name], before[name])}
    projections = {name for name in after if name.endswith((".q.weight", ".v.weight"))}
    special = {name for name in after if name.endswith("embed.weight")}  # the new rows of special tokens are random
    assert changed - special == projections and len(projections) == 4
    for name in projections:
        update = after[name] - before[name]
        assert torch.linalg.matrix_rank(update, tol=1e-6) == 3
    assert "parameters are trained" in str(list(Run.open(run).log()))


def test_loss_falls_more_than_with_a_frozen_backbone(runs: Path, tmp_path: Path) -> None:
    losses = {}
    for name, overrides in {"lora": LORA, "frozen": ("train.freeze=3",)}.items():
        recipe = classify_recipe(tmp_path, runs / "bert", *overrides, "train.steps=60", "train.lr=0.01")
        losses[name] = load(trained(recipe, tmp_path / name)).evaluate("dev")["loss"]
    assert losses["lora"] < losses["frozen"]


def test_resumed_training_is_bit_identical(runs: Path, tmp_path: Path) -> None:
    recipe = tag_recipe(tmp_path, runs / "bert", *LORA, "init.lora.dropout=0.2", "train.steps=12")
    uninterrupted = trained(recipe, tmp_path / "whole")
    stop, training = Stop(), begin(recipe, tmp_path / "parts")
    for event in training.events(stop):
        if isinstance(event, Progress) and event.step == 5:
            stop.request()
    events = list(resume(tmp_path / "parts").events())
    assert isinstance(events[0], Started) and events[0].step == 5
    assert_same_checkpoints(uninterrupted, tmp_path / "parts")


def test_checkpoints_are_averaged_after_the_updates_are_merged(runs: Path, tmp_path: Path) -> None:
    recipe = classify_recipe(
        tmp_path, runs / "gpt", *LORA, "train.steps=12", "train.evaluate_every=4", "train.keep_checkpoints=3"
    )
    run = Run.open(trained(recipe, tmp_path / "run"))
    average(run.path, 3, tmp_path / "mean")
    expected: dict[str, torch.Tensor] = {}
    for _, weights in run.store().newest_weights(3):
        for name, weight in merge_lora(weights, 2.0).items():
            expected[name] = expected.get(name, torch.zeros_like(weight)) + weight / 3
    model = load(tmp_path / "mean").model.state_dict()
    for name, weight in expected.items():
        torch.testing.assert_close(model[name], weight)


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("recurrent-lm", LORA, "init.lora needs a Transformer"),
        ("bert", (*LORA, "init.weights=false"), "lora updates pretrained weights, so weights must be true"),
        ("bert", ("init.lora.targets=[]",), "targets must name at least one layer"),
        ("bert", ("init.lora.targets=[w]",), "init.lora.targets"),
        ("bert", ("init.lora.rank=0",), "init.lora.rank"),
    ],
)
def test_invalid_settings_are_rejected(
    runs: Path, tmp_path: Path, kind: str, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        classify_recipe(tmp_path, runs / kind, *overrides)
