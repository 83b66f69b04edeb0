"""The task of bidirectional language models: each direction predicts every token once, and resuming is exact."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.bidirectional import bidirectional_recipe
from tests.understanding import assert_same_checkpoints, trained

from seqloom.core.errors import DataError, UsageError
from seqloom.data.corpus import TextCounts
from seqloom.predict.language_model import LanguageModelPredictor
from seqloom.predict.loader import load
from seqloom.tasks.bidirectional_lm import Task, rows_of
from seqloom.train.events import Progress
from seqloom.train.stop import Stop
from seqloom.training import begin, resume


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(2, 12))
def test_each_direction_predicts_every_token_once(ids: list[int], length: int) -> None:
    rows = list(rows_of(ids, length))
    assert all(2 <= len(row) <= length for row in rows)
    # From the left: all tokens of a row except the first
    assert [token for row in rows for token in row[1:]] == [*ids, 0]
    # From the right: all tokens of a row except the last
    assert [token for row in rows for token in row[:-1]] == [0, *ids]
    assert all(first[-1] == other[0] for first, other in pairwise(rows))


def test_batches_contain_every_document_and_depend_on_seed_and_step(tmp_path: Path) -> None:
    first, second = (Task.prepare(bidirectional_recipe(tmp_path)) for _ in range(2))
    seen = []
    for step in range(first.steps_per_epoch()):
        left, right = first.batch(1, step), second.batch(1, step)
        assert torch.equal(left["tokens"], right["tokens"]) and left["read"] == int(left["mask"].sum())
        seen += [row[real].tolist() for row, real in zip(left["tokens"], left["mask"], strict=True)]
    texts = first.tokenizer.encode_batch(first.corpus.split("train"))
    assert sorted(seen) == sorted(row for ids in texts for row in rows_of(ids, 24))
    assert first.tokens_per_step() == pytest.approx(sum(map(len, seen)) / first.steps_per_epoch())


def test_metrics_match_independent_computation(tmp_path: Path) -> None:
    task = Task.prepare(bidirectional_recipe(tmp_path, "batch.max_length=100"))
    torch.manual_seed(0)
    model = task.model().eval()
    sums, count = torch.zeros(2, dtype=torch.float64), 0
    for ids in task.tokenizer.encode_batch(task.corpus.split("dev")):
        tokens = torch.tensor([[0, *ids, 0]])
        after, before = (logits[0].log_softmax(1) for logits in model(tokens, torch.ones_like(tokens).bool()))
        sums[0] -= sum(after[position, token].item() for position, token in enumerate([*ids, 0]))
        sums[1] -= sum(before[position + 1, token].item() for position, token in enumerate([0, *ids]))
        count += len(ids) + 1
    metrics, (right, left) = task.evaluate(model, "dev"), (sums / count).tolist()
    assert metrics["loss"] == pytest.approx((right + left) / 2, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["forward_perplexity"] == pytest.approx(math.exp(right), rel=1e-5)
    assert metrics["backward_perplexity"] == pytest.approx(math.exp(left), rel=1e-5)
    characters = TextCounts.of(task.corpus.split("dev")).characters
    assert metrics["bits_per_character"] == pytest.approx(metrics["loss"] * count / characters / math.log(2), rel=1e-5)


def test_blank_documents_are_ignored(tmp_path: Path) -> None:
    task = Task.prepare(bidirectional_recipe(tmp_path))
    torch.manual_seed(0)
    model = task.model().eval()
    more = replace(task.corpus, splits={**task.corpus.splits, "dev": ["", *task.corpus.split("dev"), "", "  "]})
    metrics, again = (
        Task(task.recipe, corpus, task.tokenizer).evaluate(model, "dev") for corpus in (task.corpus, more)
    )
    for name in ("loss", "bits_per_character", "word_perplexity"):
        assert again[name] == pytest.approx(metrics[name])


def test_training_lowers_both_perplexities(tmp_path: Path) -> None:
    """In the artificial language, only few words can follow or precede each word."""
    words = ["train.steps=120", "train.evaluate_every=120", "train.lr=2e-2", "train.log_every=120"]
    run = trained(bidirectional_recipe(tmp_path, *words), tmp_path / "run")
    metrics = load(run).evaluate("test")
    assert max(metrics["forward_perplexity"], metrics["backward_perplexity"]) < 4  # the vocabulary has 20 words


def test_resumed_training_is_bit_identical(tmp_path: Path) -> None:
    recipe = bidirectional_recipe(tmp_path, "model.dropout=0.2")
    uninterrupted, stop = trained(recipe, tmp_path / "whole"), Stop()
    for event in begin(recipe, tmp_path / "parts").events(stop):
        if isinstance(event, Progress) and event.step == 4:
            stop.request()
    for _ in resume(tmp_path / "parts").events():
        pass
    assert_same_checkpoints(uninterrupted, tmp_path / "parts")
    other = trained(bidirectional_recipe(tmp_path, "model.dropout=0.2", "seed=2"), tmp_path / "other")
    with pytest.raises(AssertionError):
        assert_same_checkpoints(uninterrupted, other)


def test_bidirectional_model_supports_embedding_but_not_generation(tmp_path: Path) -> None:
    run = trained(bidirectional_recipe(tmp_path, "train.steps=2"), tmp_path / "run")
    model = load(run)
    assert model.evaluate_documents(["The cats purr all day ."])["forward_perplexity"] > 1
    vectors = model.embed(["The cats purr .", "", "They eat milk ."])
    assert vectors.shape == (3, 32) and not vectors[1].any()
    tokens = torch.tensor([[0, *model.tokenizer.encode("The cats purr ."), 0]])
    with torch.no_grad():
        h = model.model.read(tokens, torch.ones_like(tokens).bool())[0].mean(dim=0)
    assert torch.allclose(torch.from_numpy(vectors[0]), h, atol=1e-6)
    with pytest.raises(UsageError, match="a bidirectional language model: use `seqloom embed`"):
        load(run, "auto", LanguageModelPredictor)


def test_invalid_recipe_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        bidirectional_recipe(tmp_path, "batch.tokens=0", "batch.max_length=1", "model.layers=0", "model.kind=gpt")
    assert all(words in str(error.value) for words in ("tokens: must be", "max_length: must be at least 2", "kind"))
    recipe = bidirectional_recipe(tmp_path)
    (tmp_path / "dev.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(DataError):
        Task.prepare(recipe)
