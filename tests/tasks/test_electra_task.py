"""Replaced tokens as an objective of the masked task: what a recipe becomes, what is measured, resume, fine-tuning."""

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


def test_a_recipe_for_a_bert_becomes_one_for_an_electra(tmp_path: Path) -> None:
    bert, electra = masked_recipe(tmp_path), masked_recipe(tmp_path, ELECTRA, "masks.mlm_probability=0.2")
    assert isinstance(electra.model, ElectraConfig)
    assert (electra.masks.mlm_probability, electra.masks.mask_replace_prob, electra.masks.random_replace_prob) == (
        0.2,
        1.0,
        0.0,
    )
    own, other = to_mapping(electra.model), to_mapping(bert.model)
    assert {key for key in own if own[key] != other.get(key)} == {"kind", "generator", "detection_weight"}
    assert build_recipe(to_mapping(electra), "what a run keeps") == electra


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="masks every chosen token") as error:
        masked_recipe(tmp_path, ELECTRA, "masks.mask_replace_prob=0.8", "batch.max_length=200", "model.context=100")
    assert "max_length must be at most 100" in str(error.value)
    with pytest.raises(UsageError, match="and vice versa; got electra, mlm"):
        masked_recipe(tmp_path, "objective=mlm", "model.kind=electra")
    with pytest.raises(UsageError, match=r"model\.generator\.size_ratio: must be greater than 0"):
        masked_recipe(tmp_path, ELECTRA, "model.generator.size_ratio=0")
    with pytest.raises(UsageError, match="generator"):
        masked_recipe(tmp_path, "model.generator.size_ratio=0.5")  # a bert has none


def test_what_is_measured_is_what_both_think(tmp_path: Path) -> None:
    task = Task.prepare(masked_recipe(tmp_path, ELECTRA, "model.dropout=0", "batch.eval_size=5"))
    torch.manual_seed(0)
    model = task.model().eval()
    found, again = task.evaluate(model, "dev"), task.evaluate(model, "dev")
    assert found == again  # the same is asked, and replaced
    seen: list[Any] = []
    handle = model.register_forward_hook(lambda module, given, told: seen.append((given[0], told)))
    task.evaluate(model, "dev")
    handle.remove()
    filling, telling, right, hits, said, replaced, tokens, gaps = 0.0, 0.0, 0, 0, 0, 0, 0, 0
    for batch, told in seen:
        for row in range(len(told.tokens)):
            for place in told.counted[row].nonzero().flatten().tolist():
                logit, is_new = told.logits[row, place].double(), bool(told.replaced[row, place])
                telling -= torch.nn.functional.logsigmoid(logit if is_new else -logit).item()
                tokens, replaced, said = tokens + 1, replaced + is_new, said + (logit > 0).item()
                hits += is_new and (logit > 0).item()
            for place, target in enumerate(batch["targets"][row].tolist()):
                if target >= 0:
                    scores = told.masked[row, place].double().log_softmax(dim=0)
                    gaps, filling, right = (
                        gaps + 1,
                        filling - scores[target].item(),
                        right + (scores.argmax() == target).item(),
                    )
    assert found["masked_loss"] == pytest.approx(filling / gaps, rel=1e-5)
    assert found["masked_accuracy"] == pytest.approx(right / gaps)
    assert found["detection_loss"] == pytest.approx(telling / tokens, rel=1e-5)
    assert found["loss"] == pytest.approx(found["masked_loss"] + 50 * found["detection_loss"])
    assert found["replaced_rate"] == pytest.approx(replaced / tokens)
    missed = replaced - hits
    assert found["replaced_accuracy"] == pytest.approx(1 - (missed + said - hits) / tokens)
    assert found["replaced_recall"] == pytest.approx(hits / replaced)
    precision = hits / max(said, 1)
    assert found["replaced_precision"] == pytest.approx(precision)
    assert found["replaced_f1"] == pytest.approx(2 * hits / (said + replaced))
    assert task.monitor.unit == "nats per masked token + 50 times per token"


def test_every_row_has_its_own_draws_however_many_are_read_together(tmp_path: Path) -> None:
    found = []
    for rows in (3, 64):
        task = Task.prepare(masked_recipe(tmp_path, ELECTRA, "model.dropout=0", f"batch.eval_size={rows}"))
        torch.manual_seed(0)
        found.append(task.evaluate(task.model().eval(), "dev"))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert isinstance(task.read("dev"), MaskedBatches) and len(task.read("dev").epoch(EVALUATION_SEED, 0)["tokens"]) > 3


def test_it_learns(tmp_path: Path) -> None:
    """In the little language most of what does not fit shows."""
    changes = ["train.steps=250", "train.evaluate_every=250", "train.lr=1e-2", "batch.size=16", "train.log_every=250"]
    changes += ["model.dropout=0", "model.norm_first=true", "model.init=0.2", "model.positions.kind=rotary"]
    found = load(trained(masked_recipe(tmp_path, ELECTRA, *changes), tmp_path / "run")).evaluate("test")
    assert found["replaced_f1"] > 0.5 and found["replaced_accuracy"] > 1 - 0.8 * found["replaced_rate"]
    assert found["masked_accuracy"] > 0.2


def test_stopping_and_going_on_changes_not_a_bit(tmp_path: Path) -> None:
    recipe = masked_recipe(tmp_path, ELECTRA, "model.dropout=0.2")
    whole, stop = trained(recipe, tmp_path / "whole"), Stop()
    for event in begin(recipe, tmp_path / "parts").events(stop):
        if isinstance(event, Progress) and event.step == 4:
            stop.request()
    for _ in resume(tmp_path / "parts").events():
        pass
    assert_same_checkpoints(whole, tmp_path / "parts")
    kept = load(tmp_path / "parts").run.recipe
    assert kept["model"]["kind"] == "electra" and kept["masks"]["mask_replace_prob"] == 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("electra")
    return trained(masked_recipe(folder, ELECTRA, "tokenizer.kind=byte-pair", "tokenizer.size=300"), folder / "run")


def test_the_generator_fills_gaps(run: Path) -> None:
    trained_model = load(run, "cpu")
    (found,) = trained_model.fill("The cats [MASK] all day .", top=3)
    model: Electra = trained_model.model
    specials = trained_model.specials
    ids = read_gaps(trained_model.tokenizer, specials, "The cats [MASK] all day .").ids
    row = [specials.classify, *ids, specials.separate]
    with torch.no_grad():
        h = model.generate(torch.tensor([row]))[0, row.index(specials.mask)]
    best = model.masked_logits(h).softmax(dim=0).topk(3)
    assert [guess.id for guess in found.masks[0]] == best.indices.tolist()
    assert [guess.probability for guess in found.masks[0]] == pytest.approx(best.values.tolist(), rel=1e-4)


def test_everything_else_is_done_with_the_model(run: Path) -> None:
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


def test_fine_tuning_takes_the_model_and_leaves_the_generator(run: Path, tmp_path: Path) -> None:
    recipe = classify_recipe(tmp_path, run, "train.steps=3", "train.evaluate_every=3")
    before = load(run, "cpu").model.backbone.state_dict()
    after = task_info("classify").task.prepare(recipe).model().backbone.transformer.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    out = trained(recipe, tmp_path / "out")
    assert not any("generator" in name for name in load(out, "cpu").model.state_dict())
    assert json.loads((out / "data.json").read_text())["init"]["kind"] == "electra"
    again = trained(classify_recipe(tmp_path, out, "train.steps=1"), tmp_path / "again")  # what was fine-tuned once
    assert load(again).evaluate("dev")["accuracy"] >= 0
