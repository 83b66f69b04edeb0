"""ELECTRA in the masked language modelling task: recipe, metrics, resume, and fine-tuning."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fine_tuning import classify_recipe
from tests.masked import masked_recipe
from tests.understanding import assert_same_checkpoints, trained

from seqloom.config import to_mapping
from seqloom.core.errors import UsageError
from seqloom.data.masking import MaskedBatches
from seqloom.models.electra import Electra, ElectraConfig
from seqloom.predict.loader import load
from seqloom.recipes import build_recipe
from seqloom.tasks import task_info
from seqloom.tasks.masked_lm import EVALUATION_SEED, Task
from seqloom.text.model_inputs import read_gaps
from seqloom.train.events import Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume

ELECTRA = "objective=electra"


def test_bert_recipe_becomes_electra_recipe(tmp_path: Path) -> None:
    bert, electra = masked_recipe(tmp_path), masked_recipe(tmp_path, ELECTRA, "masks.mlm_probability=0.2")
    assert isinstance(electra.model, ElectraConfig)
    assert (electra.masks.mlm_probability, electra.masks.mask_replace_prob, electra.masks.random_replace_prob) == (
        0.2,
        1.0,
        0.0,
    )
    electra_model, bert_model = to_mapping(electra.model), to_mapping(bert.model)
    assert {key for key in electra_model if electra_model[key] != bert_model.get(key)} == {
        "kind",
        "generator",
        "detection_weight",
    }
    assert build_recipe(to_mapping(electra), "the recipe of a run") == electra


def test_incompatible_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="masks every chosen token") as error:
        masked_recipe(tmp_path, ELECTRA, "masks.mask_replace_prob=0.8", "batch.max_length=200", "model.context=100")
    assert "max_length must be at most 100" in str(error.value)
    with pytest.raises(UsageError, match="and vice versa; got electra, mlm"):
        masked_recipe(tmp_path, "objective=mlm", "model.kind=electra")
    with pytest.raises(UsageError, match=r"model\.generator\.size_ratio: must be greater than 0"):
        masked_recipe(tmp_path, ELECTRA, "model.generator.size_ratio=0")
    with pytest.raises(UsageError, match="generator"):
        masked_recipe(tmp_path, "model.generator.size_ratio=0.5")  # bert has no generator


def test_metrics_match_independent_computation(tmp_path: Path) -> None:
    task = Task.prepare(masked_recipe(tmp_path, ELECTRA, "model.dropout=0", "batch.eval_size=5"))
    torch.manual_seed(0)
    model = task.model().eval()
    metrics, again = task.evaluate(model, "dev"), task.evaluate(model, "dev")
    assert metrics == again  # masks and replacements are fixed
    seen: list[Any] = []
    handle = model.register_forward_hook(lambda module, given, outputs: seen.append((given[0], outputs)))
    task.evaluate(model, "dev")
    handle.remove()
    generator_loss, detection_loss, right, hits, detected, replaced, tokens, gaps = 0.0, 0.0, 0, 0, 0, 0, 0, 0
    for batch, outputs in seen:
        for row in range(len(outputs.tokens)):
            for position in outputs.counted[row].nonzero().flatten().tolist():
                logit, is_new = outputs.logits[row, position].double(), bool(outputs.replaced[row, position])
                detection_loss -= torch.nn.functional.logsigmoid(logit if is_new else -logit).item()
                tokens, replaced, detected = tokens + 1, replaced + is_new, detected + (logit > 0).item()
                hits += is_new and (logit > 0).item()
            for position, target in enumerate(batch["targets"][row].tolist()):
                if target >= 0:
                    scores = outputs.masked[row, position].double().log_softmax(dim=0)
                    gaps, generator_loss, right = (
                        gaps + 1,
                        generator_loss - scores[target].item(),
                        right + (scores.argmax() == target).item(),
                    )
    assert metrics["masked_loss"] == pytest.approx(generator_loss / gaps, rel=1e-5)
    assert metrics["masked_accuracy"] == pytest.approx(right / gaps)
    assert metrics["detection_loss"] == pytest.approx(detection_loss / tokens, rel=1e-5)
    assert metrics["loss"] == pytest.approx(metrics["masked_loss"] + 50 * metrics["detection_loss"])
    assert metrics["replaced_rate"] == pytest.approx(replaced / tokens)
    missed = replaced - hits
    assert metrics["replaced_accuracy"] == pytest.approx(1 - (missed + detected - hits) / tokens)
    assert metrics["replaced_recall"] == pytest.approx(hits / replaced)
    precision = hits / max(detected, 1)
    assert metrics["replaced_precision"] == pytest.approx(precision)
    assert metrics["replaced_f1"] == pytest.approx(2 * hits / (detected + replaced))
    assert task.monitor.unit == "nats per masked token + 50 times per token"


def test_random_numbers_of_a_row_do_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    metrics = []
    for rows in (3, 64):
        task = Task.prepare(masked_recipe(tmp_path, ELECTRA, "model.dropout=0", f"batch.eval_size={rows}"))
        torch.manual_seed(0)
        metrics.append(task.evaluate(task.model().eval(), "dev"))
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5)
    assert (
        isinstance(task.eval_batches("dev"), MaskedBatches)
        and len(task.eval_batches("dev").epoch(EVALUATION_SEED, 0)["tokens"]) > 3
    )


def test_training_detects_replaced_tokens(tmp_path: Path) -> None:
    """In the artificial language, most replaced tokens do not match their context."""
    changes = ["train.steps=250", "train.evaluate_every=250", "train.lr=1e-2", "batch.size=16", "train.log_every=250"]
    changes += ["model.dropout=0", "model.norm_first=true", "model.init=0.2", "model.positions.kind=rotary"]
    metrics = load(trained(masked_recipe(tmp_path, ELECTRA, *changes), tmp_path / "run")).evaluate("test")
    assert metrics["replaced_f1"] > 0.5 and metrics["replaced_accuracy"] > 1 - 0.8 * metrics["replaced_rate"]
    assert metrics["masked_accuracy"] > 0.2


def test_resumed_training_is_bit_identical(tmp_path: Path) -> None:
    recipe = masked_recipe(tmp_path, ELECTRA, "model.dropout=0.2")
    uninterrupted, stop = trained(recipe, tmp_path / "whole"), Stop()
    for event in begin(recipe, tmp_path / "parts").events(stop):
        if isinstance(event, Progress) and event.step == 4:
            stop.request()
    for _ in resume(tmp_path / "parts").events():
        pass
    assert_same_checkpoints(uninterrupted, tmp_path / "parts")
    stored = load(tmp_path / "parts").run.recipe
    assert stored["model"]["kind"] == "electra" and stored["masks"]["mask_replace_prob"] == 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("electra")
    return trained(masked_recipe(folder, ELECTRA, "tokenizer.kind=byte-pair", "tokenizer.size=300"), folder / "run")


def test_generator_fills_masks(run: Path) -> None:
    trained_model = load(run, "cpu")
    (metrics,) = trained_model.fill_mask("The cats [MASK] all day .", top=3)
    model: Electra = trained_model.model
    specials = trained_model.specials
    ids = read_gaps(trained_model.tokenizer, specials, "The cats [MASK] all day .").ids
    row = [specials.classify, *ids, specials.separate]
    with torch.no_grad():
        h = model.generate(torch.tensor([row]))[0, row.index(specials.mask)]
    best = model.masked_logits(h).softmax(dim=0).topk(3)
    assert [guess.id for guess in metrics.masks[0]] == best.indices.tolist()
    assert [guess.probability for guess in metrics.masks[0]] == pytest.approx(best.values.tolist(), rel=1e-4)


def test_other_predictions_use_the_discriminator(run: Path) -> None:
    trained_model = load(run, "cpu")
    vectors, model = trained_model.embed(["The cats purr ."]), trained_model.model
    row = [
        trained_model.specials.classify,
        *trained_model.tokenizer.encode("The cats purr ."),
        trained_model.specials.separate,
    ]
    assert torch.allclose(torch.from_numpy(vectors[0]), model.read(torch.tensor([row]))[0].mean(dim=0), atol=1e-6)
    assert trained_model.heads("The cats purr .").encoder is not None
    assert trained_model.evaluate_documents(["The cats purr all day . They eat milk ."])["replaced_rate"] > 0


def test_fine_tuning_transfers_discriminator_without_generator(run: Path, tmp_path: Path) -> None:
    recipe = classify_recipe(tmp_path, run, "train.steps=3", "train.evaluate_every=3")
    before = load(run, "cpu").model.backbone.state_dict()
    after = task_info("classify").task.prepare(recipe).model().backbone.transformer.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    out = trained(recipe, tmp_path / "out")
    assert not any("generator" in name for name in load(out, "cpu").model.state_dict())
    assert json.loads((out / "data.json").read_text())["init"]["kind"] == "electra"
    again = trained(classify_recipe(tmp_path, out, "train.steps=1"), tmp_path / "again")  # starts from a fine-tuned run
    assert load(again).evaluate("dev")["accuracy"] >= 0
