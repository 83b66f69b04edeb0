"""The translation task: batches, loss, metrics, files of a run, and errors."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from seqloom.config import apply_overrides, build, parse_overrides
from seqloom.core.errors import DataError, UsageError
from seqloom.data.examples import ParallelExample
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.evaluate.translation import score_translations
from seqloom.predict.loader import load
from seqloom.recipes import read_recipe, recipe_names
from seqloom.runs.run import Run
from seqloom.tasks import translate
from seqloom.tasks.translate import Recipe, Task
from seqloom.train.events import Evaluated, Finished
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.training import begin, resume

NAMES = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
SMALL = {
    "task": "translate",
    "tokenizer": {"kind": "byte-pair", "size": 280},
    "batch": {"tokens": 60, "dev_pairs": 5},
    "model": {"kind": "recurrent-seq2seq", "hidden": 8},
    "train": {"steps": 6, "lr": 0.01, "evaluate_every": 3, "log_every": 1, "device": "cpu"},
}


SIZES = {"train": 61, "dev": 12, "test": 9}


def _pairs() -> dict[str, list[tuple[str, str]]]:
    """Return distinct lines of number words with their translations in reverse order."""
    draw = random.Random(0)
    lines = list(dict.fromkeys(tuple(draw.choices(list(NAMES), k=draw.randint(1, 5))) for _ in range(200)))
    pairs = iter([(" ".join(line), " ".join(NAMES[word] for word in reversed(line))) for line in lines])
    return {split: list(islice(pairs, count)) for split, count in SIZES.items()}


PAIRS = _pairs()


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Any]:
    files: dict[str, list[str]] = {}
    for split, pairs in PAIRS.items():
        sides = zip(*pairs, strict=True)
        files[split] = [str(tmp_path / f"{split}.{language}") for language in ("en", "de")]
        for file, lines in zip(files[split], sides, strict=True):
            Path(file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    base = {**SMALL, "data": {"corpus": "parallel", **files}}

    def make(*overrides: str) -> Any:
        return build(Recipe, apply_overrides(base, parse_overrides(overrides)))

    return make


def fresh(task: Task, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return task.model().eval()


def train(recipe: Any, out: Path) -> tuple[Run, list[Any]]:
    training = begin(recipe, out)
    return training.run, list(training.events())


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batch_contains_matching_pairs(recipe: Any) -> None:
    task = Task.prepare(recipe())
    known = set(PAIRS["train"])
    seen = 0
    for step in range(task.steps_per_epoch()):
        batch = task.batch(1, step)
        assert set(batch) == {"source", "source_mask", "inputs", "targets", "target_mask", "read"}
        assert batch["read"] == int(batch["target_mask"].sum())
        for row in range(len(batch["source"])):
            source, target = (task.tokenizer.decode(batch[name][row].tolist()) for name in ("source", "targets"))
            assert (source, target) in known
            seen += 1
    assert seen == 61


def test_byte_pair_dropout_changes_only_the_segmentation(recipe: Any) -> None:
    task = Task.prepare(recipe("tokenizer.dropout=0.4", "tokenizer.size=300"))
    plain = Task.prepare(recipe("tokenizer.size=300"))
    steps = task.steps_per_epoch()
    assert steps == plain.steps_per_epoch()
    texts = []
    for epoch in (0, 1):
        batches = [task.batch(1, epoch * steps + step) for step in range(steps)]
        rows = [row.tolist() for batch in batches for row in batch["targets"]]
        texts.append(sorted(task.tokenizer.decode(row) for row in rows))
        assert sum(batch["read"] for batch in batches) > len(plain.side_tokens("train", "target").ids)
        # The batch is padded to its longest sentence
        assert all(batch["target_mask"].any(dim=0).all() for batch in batches)
    assert texts[0] == texts[1] == sorted(target for _, target in PAIRS["train"])
    first, again, other = (task.batch(seed, 3)["source"] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    task.batch(1, 9)
    assert torch.equal(task.batch(1, 3)["source"], first)
    assert (
        task.side_tokens("dev", "target").ids.tolist() == plain.side_tokens("dev", "target").ids.tolist()
    )  # dropout is not used in evaluation
    assert task.tokenizer.to_json() == plain.tokenizer.to_json()


def test_padding_rows_are_ignored(recipe: Any) -> None:
    """Batches with a fixed set of shapes are padded with fully masked rows."""
    task = Task.prepare(recipe("batch.max_shapes=1", "batch.tokens=250"))
    batches = [task.batch(1, step) for step in range(task.steps_per_epoch())]
    assert len({batch["source"].shape for batch in batches}) == 1
    (batch,) = [batch for batch in batches if not batch["source_mask"].any(dim=1).all()]
    real = batch["source_mask"].any(dim=1)
    assert not batch["target_mask"][~real].any()
    for options in ([], ["model.attention=null"], ["model.attention.order=bahdanau"], ["model.reverse=true"]):
        model = fresh(Task.prepare(recipe(*options))).train()
        metrics = []
        for first in (batch, {name: value[real] if name != "read" else value for name, value in batch.items()}):
            model.zero_grad()
            loss = task.loss(model, first, None)
            loss.value.backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            assert loss.tokens == int(batch["target_mask"].sum())
            metrics.append((loss.value.detach(), gradient))
        assert torch.isfinite(metrics[0][1]).all()
        torch.testing.assert_close(metrics[0], metrics[1])


def test_loss_matches_that_of_the_model(recipe: Any) -> None:
    task = Task.prepare(recipe("loss.label_smoothing=0.2"))
    model, batch = fresh(task), task.batch(1, 0)
    logits = model(batch["source"], batch["source_mask"], batch["inputs"], batch["target_mask"])
    log_probs = logits.log_softmax(dim=-1)
    picked = -log_probs.gather(2, batch["targets"].unsqueeze(2)).squeeze(2)
    smoothed = (0.8 * picked - 0.2 * log_probs.mean(dim=-1))[batch["target_mask"]].mean()
    metrics = task.loss(model, batch, None)
    torch.testing.assert_close(metrics.value, smoothed)
    assert metrics.carry is None
    assert task.monitor.remark == "smoothed" and Task.prepare(recipe()).monitor.remark == ""


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_loss_and_perplexity_cover_every_token(recipe: Any) -> None:
    task = Task.prepare(recipe("batch.eval_tokens=40"))
    model = fresh(task)
    total = tokens = 0.0
    for pair in task.corpus.split("test"):  # one pair at a time
        single = Task(task.recipe, replace(task.corpus, splits={"train": [pair]}), task.tokenizer)
        batch = single.batch(1, 0)
        total -= model.target_log_probs(batch).sum().item()
        tokens += batch["target_mask"].sum().item()
    metrics = task.losses(model, "test")
    assert metrics["loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))


def test_report_uses_translations_of_search(recipe: Any) -> None:
    task = Task.prepare(recipe("decode.beam=3"))
    model = fresh(task)
    report = task.report(model, "test")
    assert [line.source for line in report.lines] == [pair.source for pair in task.corpus.split("test")]
    assert [line.reference for line in report.lines] == [pair.target for pair in task.corpus.split("test")]
    scores = score_translations(report.hypotheses, [line.reference for line in report.lines], language="de")
    assert scores.metrics.items() <= report.metrics.items()
    assert task.losses(model, "test").items() <= report.metrics.items()
    assert "beam" in report.decoding and "3" in report.decoding
    assert task.evaluate(model, "test") == report.metrics
    greedy = task.report(model, "test", BeamConfig(beam=1))
    assert greedy.decoding.startswith("greedy")
    assert greedy.hypotheses == [line.hypothesis for line in task.translate(model, "test", BeamConfig(beam=1))]
    assert "alignment_error_rate" not in report.metrics  # because the alignment is unknown


def test_validation_translates_some_dev_pairs_by_greedy_search(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task.prepare(recipe())
    model = fresh(task)
    scored: list[list[str]] = []

    def spy(hypotheses: list[str], references: list[str], **options: Any) -> Any:
        scored.append(references)
        return score_translations(hypotheses, references, **options)

    monkeypatch.setattr(translate, "score_translations", spy)
    metrics = task.validate(model)
    lines = task.translate(model, "dev", BeamConfig(beam=1))
    chosen = [lines[index] for index in (0, 3, 6, 8, 11)]  # five evenly spaced pairs of twelve
    hypotheses, references = [line.hypothesis for line in chosen], [line.reference for line in chosen]
    assert scored == [references]
    assert metrics == {**task.losses(model, "dev"), **score_translations(hypotheses, references, language="de").metrics}
    assert set(Task.prepare(recipe("batch.dev_pairs=0")).validate(model)) == {"loss", "perplexity"}
    assert len(scored) == 1
    Task.prepare(recipe("batch.dev_pairs=null")).validate(model)
    assert scored[1] == [target for _, target in PAIRS["dev"]]


def test_alignment_is_measured_if_known(recipe: Any) -> None:
    task = Task.prepare(recipe())
    links = (((0, 3), (5, 9)), ((4, 7), (0, 4)))  # one two, zwei eins
    corpus = replace(
        task.corpus, splits={**task.corpus.splits, "test": [ParallelExample("one two", "zwei eins", links=links)] * 3}
    )
    known = Task(task.recipe, corpus, task.tokenizer)
    assert 0 <= known.report(fresh(task), "test").metrics["alignment_error_rate"] <= 1
    without = Task(recipe("model.attention=null"), corpus, task.tokenizer)
    assert "alignment_error_rate" not in without.report(fresh(without), "test").metrics


@pytest.mark.parametrize(("monitor", "higher"), [("loss", False), ("bleu", True), ("chrf", True)])
def test_monitor_selects_best_checkpoint(recipe: Any, tmp_path: Path, monitor: str, higher: bool) -> None:
    chosen = recipe(f"monitor={monitor}", "train.steps=9")
    assert Task.prepare(chosen).monitor.better(2.0, 1.0) is higher
    run, events = train(chosen, tmp_path / "run")
    figures = {event.step: event.metrics[monitor] for event in events if isinstance(event, Evaluated)}
    best = next(event for event in events if isinstance(event, Finished))
    assert figures[best.best_step] == (max if higher else min)(figures.values())
    assert (run.metrics("dev") or {})["step"] == best.best_step


def test_training_memorizes_sixty_pairs(recipe: Any) -> None:
    """Memorize sixty pairs and translate them correctly."""
    task = Task.prepare(recipe("model.hidden=48", "tokenizer.kind=words", "batch.tokens=400"))
    trainer = TrainState(task, replace(task.recipe.train, steps=150, lr=0.02), seed=1)
    for _ in range(150):
        make_step(trainer)
    trainer.model.eval()
    assert task.losses(trainer.model, "train")["loss"] < 0.1
    assert task.report(trainer.model, "train").metrics["exact_match"] > 0.9


# --- a run ------------------------------------------------------------------------------------------------------------


def test_run_records_counts_languages_and_metrics(recipe: Any, tmp_path: Path) -> None:
    run, _ = train(recipe(), tmp_path / "run")
    data = json.loads((run.path / "data.json").read_text())
    assert (data["corpus"], data["source"], data["target"], data["notes"]) == ("parallel", "en", "de", [])
    source, target = zip(*PAIRS["test"], strict=True)
    assert data["counts"]["test"] == {
        "pairs": 9,
        "source_words": sum(len(line.split()) for line in source),
        "source_characters": sum(map(len, source)),
        "target_words": sum(len(line.split()) for line in target),
        "target_characters": sum(map(len, target)),
    }
    assert set(data["sha256"]) == {"train", "dev", "test"}
    card = (run.path / "card.md").read_text()
    assert "Languages: en to de." in card and "| test | 9 |" in card and "| BLEU |" in card
    assert "of dev are measured on greedy translations of at most 5 pairs" in card
    assert "document's end" not in card
    task = Task.reopen(recipe(), run)
    assert task.tokenizer.fingerprint() == run.tokenizer.fingerprint()
    assert task.losses(run.model("cpu"), "dev")["loss"] == pytest.approx((run.metrics("dev") or {})["loss"])


def test_vocabulary_covers_both_sides(recipe: Any) -> None:
    task = Task.prepare(recipe("tokenizer.kind=words"))
    assert not task.tokenizer.unknown_pieces(" ".join([*NAMES, *NAMES.values()]))


def test_resumed_training_is_bit_identical(recipe: Any, tmp_path: Path) -> None:
    uninterrupted, _ = train(recipe("train.steps=8", "train.evaluate_every=4"), tmp_path / "whole")
    first, _ = train(recipe("train.steps=4", "train.evaluate_every=4"), tmp_path / "parts")
    list(resume(first.path, ["train.steps=8"]).events())
    variant, other = (dict(run.model("cpu").state_dict()) for run in (uninterrupted, first))
    assert all(torch.equal(variant[name], other[name]) for name in variant)
    other_seed, _ = train(recipe("train.steps=8", "train.evaluate_every=4", "seed=2"), tmp_path / "other")
    other = dict(other_seed.model("cpu").state_dict())
    assert not all(torch.equal(variant[name], other[name]) for name in variant)


def test_changed_data_is_rejected(recipe: Any, tmp_path: Path) -> None:
    run, _ = train(recipe(), tmp_path / "run")
    file = tmp_path / "test.de"
    file.write_text(file.read_text(encoding="utf-8").replace("eins", "zwei"), encoding="utf-8")
    with pytest.raises(DataError, match="has changed since it was trained: test of parallel differ"):
        Task.reopen(recipe(), run).corpus.split("test")


def test_plain_text_evaluation_is_rejected(recipe: Any, tmp_path: Path) -> None:
    run, _ = train(recipe(), tmp_path / "run")
    with pytest.raises(UsageError, match="pairs of sentences, not on a text"):
        load(run.path).evaluate_documents(["one two"])


# --- warnings and errors ----------------------------------------------------------------------------------------------


def test_omitted_pairs_and_unknown_tokens_give_warnings(recipe: Any) -> None:
    assert Task.prepare(recipe()).warnings() == []
    task = Task.prepare(recipe("batch.max_length=4", "tokenizer.kind=words", "tokenizer.min_count=40"))
    noted = Task(task.recipe, replace(task.corpus, notes=("3 pairs are blank",)), task.tokenizer)
    metrics = noted.warnings()
    left_out = sum(len(source.split()) > 3 for source, _ in PAIRS["train"])  # END is counted as the fourth token
    assert metrics[0] == "3 pairs are blank."
    assert f"{left_out} of 61 training pairs are omitted" in metrics[1] and "batch.max_length" in metrics[1]
    assert len(metrics) == 4 and all("are <unk>" in line for line in metrics[2:])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["monitor=bleu", "batch.dev_pairs=0"], "monitor bleu needs translations of dev"),
        (["monitor=accuracy"], "monitor"),
        (["tokenizer.dropout=0.1", "batch.max_shapes=8"], "batch.max_shapes must be null"),
        (["batch.tokens=0"], "tokens: must be at least 1"),
        (["batch.max_length=1"], "max_length: must be at least 2"),
        (["batch.dev_pairs=-1"], "dev_pairs: must be at least 0"),
        (["loss.label_smoothing=1.0"], "label_smoothing: must be less than 1"),
        (["decode.beam=0"], "beam: must be at least 1"),
        (["data.corpus=pydocs"], "corpus"),
        (["model.kind=recurrent-lm"], "kind"),
    ],
)
def test_invalid_recipe_is_rejected(recipe: Any, overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe(*overrides)


def test_too_long_sources_are_rejected_before_training(recipe: Any) -> None:
    located = recipe("model.attention.score=location", "model.attention.max_length=5")
    with pytest.raises(DataError, match=r"A source of train has \d+ tokens.*only 5 positions.*max_length=\d+\.$"):
        Task.prepare(located)
    with pytest.raises(DataError, match="A source of dev has"):  # dev is not filtered by length
        Task.prepare(replace(located, batch=replace(located.batch, max_length=5)))


def test_sides_longer_than_learned_positions_are_rejected_before_training(recipe: Any) -> None:
    learned = recipe("model.kind=transformer", "model.positions.kind=learned", "model.positions.max_length=6")
    with pytest.raises(
        DataError, match=r"A source of train has \d+ tokens.*only 6 positions.*model\.positions\.max_length="
    ):
        Task.prepare(learned)
    task = Task.prepare(recipe())
    for pair, side in (
        (ParallelExample("one two", "eins " * 9), "target"),
        (ParallelExample("one " * 9, "eins"), "source"),
    ):
        corpus = replace(
            task.corpus, splits={**task.corpus.splits, "train": [ParallelExample("one", "eins")], "dev": [pair]}
        )
        with pytest.raises(DataError, match=rf"A {side} of dev has \d+ tokens"):
            Task(learned, corpus, task.tokenizer).check_model()


def test_byte_pair_dropout_is_rejected_for_streams() -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.dropout is supported only for translation"):
        read_recipe("lm-bpe-gru", ["tokenizer.dropout=0.1"])


@pytest.mark.usefixtures("stub_pretrained_runs")
def test_shipped_recipes_have_the_task_translate() -> None:
    names = [name for name in recipe_names() if name.startswith("translate-")]
    assert {"translate-cldr", "translate-files", "translate-multi30k-rnn", "translate-tatoeba"} <= set(names)
    assert {"translate-cldr-transformer", "translate-multi30k"} <= set(names)
    for name in names:
        assert read_recipe(name)[1].task == "translate"
    config = read_recipe("translate-files", ["data.train=[a.en,a.de]"])[1]
    assert [Path(file).name for file in config.data.train] == ["a.en", "a.de"]


def test_validation_of_a_rehearsal_generates_as_many_tokens_as_targets_have(
    recipe: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task.prepare(recipe())
    tokenizer, references = task.tokenizer, [target for _, target in PAIRS["dev"]]
    mean = sum(len(tokenizer.encode(text)) + 1 for text in references) / len(references)  # with END
    assert task.mean_target_length() == pytest.approx(mean)
    torch.manual_seed(1)
    model, lengths = task.model().eval(), list[int]()

    def count(*arguments: Any, options: BeamConfig, **more: Any) -> Any:
        hypotheses = beam_search(*arguments, options=options, **more)
        lengths.append(max(len(best.tokens) for best, *_ in hypotheses))
        return hypotheses

    monkeypatch.setattr(translate, "beam_search", count)
    task.validate(model)
    unlimited = max(lengths)
    lengths.clear()
    task.max_generated = 4
    task.validate(model)
    assert unlimited > 4 == max(lengths)
