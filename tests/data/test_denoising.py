"""Batches of denoising: pieces end at ends of sentences, and noise is a function of seed and epoch."""

from typing import Any

import numpy as np
import pytest
import torch

from seqloom.data.noise import BARTNoiseConfig, DenoisingBatches, SpansConfig, cut_pieces

V = 500


def documents(count: int = 40, seed: int = 0) -> list[list[list[int]]]:
    """Return documents of several sentences, each of 1 to 9 tokens."""
    draw = np.random.default_rng(seed)
    return [
        [draw.integers(1, V, draw.integers(1, 10)).tolist() for _ in range(draw.integers(1, 6))] for _ in range(count)
    ]


def denoising_batches(noise: Any = None, tokens: int = 200, **more: Any) -> DenoisingBatches:
    return DenoisingBatches(cut_pieces(documents(), 16), noise or SpansConfig(), vocabulary=V, tokens=tokens, **more)


def test_pieces_contain_all_tokens_and_end_with_sentences() -> None:
    pieces = cut_pieces(documents(), 16)
    flat = [token for document in documents() for sentence in document for token in sentence]
    assert [token for piece in pieces for token in piece.tokens] == flat
    ends = np.cumsum([len(sentence) for document in documents() for sentence in document])
    assert set(np.cumsum([len(piece.tokens) for piece in pieces])) <= set(ends)
    assert max(len(piece.tokens) for piece in pieces) <= 16
    starts = np.concatenate([[0], np.cumsum([len(piece.tokens) for piece in pieces])])
    sentence_starts = [
        start + offset for start, piece in zip(starts, pieces, strict=False) for offset in piece.sentences
    ]
    assert sentence_starts == [0, *ends[:-1]]


def test_long_sentences_are_divided_and_empty_sentences_are_skipped() -> None:
    assert [piece.tokens for piece in cut_pieces([[[1, 2, 3, 4, 5], [6]]], 2)] == [[1, 2], [3, 4], [5, 6]]
    assert cut_pieces([[], [[]]], 4) == []


@pytest.mark.parametrize("noise", [SpansConfig(), BARTNoiseConfig(delete=0.1)], ids=["spans", "bart"])
def test_batch_depends_only_on_seed_and_step(noise: Any) -> None:
    first, second = denoising_batches(noise), denoising_batches(noise)
    for step in (9, 0, 31):
        left, right = first.batch(1, step), second.batch(1, step)
        assert all(torch.equal(left[name], right[name]) for name in left if name != "read")
        assert left["read"] == int(left["target_mask"].sum())
    assert not torch.equal(first.batch(1, 0)["source"], first.batch(2, 0)["source"])


def test_epoch_reads_every_text_once_with_new_noise() -> None:
    batches = denoising_batches()
    steps = batches.steps_per_epoch
    for epoch in range(2):
        members = [number for step in range(steps) for number in batches.members(1, epoch * steps + step).tolist()]
        assert sorted(members) == list(range(len(batches.texts)))
    assert batches.corrupt(3, 1, 0).source == batches.corrupt(3, 1, 0).source
    changed = [
        batches.corrupt(number, 1, 0).target != batches.corrupt(number, 1, 1).target
        for number in range(len(batches.texts))
    ]
    assert np.mean(changed) > 0.8


def test_texts_of_equal_length_have_different_noise() -> None:
    same = cut_pieces([[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]] * 30, 16)
    batches = DenoisingBatches(same, SpansConfig(), vocabulary=V, tokens=200)
    assert len({tuple(batches.corrupt(number, 1, 0).source) for number in range(30)}) > 5


def test_processes_partition_an_epoch() -> None:
    batches = denoising_batches()
    single_process = [batches.batch(1, step) for step in range(6)]
    two_processes = [batches.batch(1, step, rank, 2) for step in range(3) for rank in range(2)]
    assert all(
        torch.equal(a["source"], b["source"]) and torch.equal(a["targets"], b["targets"])
        for a, b in zip(single_process, two_processes, strict=True)
    )


def test_batch_contains_sources_and_targets() -> None:
    batches = denoising_batches(BARTNoiseConfig())
    batch, members = batches.batch(1, 2), batches.members(1, 2)
    assert len(members) * batch["targets"].shape[1] <= 200
    for row, number in enumerate(members.tolist()):
        noised = batches.corrupt(number, 1, 0)
        assert batch["source"][row][batch["source_mask"][row]].tolist() == [*noised.source, 0]
        assert batch["targets"][row][batch["target_mask"][row]].tolist() == [*noised.target, 0]
        assert batch["inputs"][row][batch["target_mask"][row]].tolist() == [0, *noised.target]
        assert batch["hidden"][row].tolist()[: len(noised.hidden)] == noised.hidden
        assert not batch["hidden"][row, len(noised.hidden) :].any()


def test_subset_of_texts_has_same_noise() -> None:
    batches = denoising_batches()
    subset = batches.only([5, 17, 2], 100)
    rows = {
        number: row
        for members, batch in subset.all_batches(0)
        for number, row in zip(members.tolist(), batch["targets"], strict=True)
    }
    assert sorted(rows) == [2, 5, 17]
    for number, row in rows.items():
        target = batches.corrupt(number, 0, 0).target
        assert row[: len(target)].tolist() == target


def test_largest_step_is_found() -> None:
    batches = denoising_batches()
    cells = [batch["source"].numel() * batch["source"].shape[1] for _, batch in batches.all_batches(1)]
    largest = batches.largest_step(1)
    assert cells[largest] >= 0.7 * max(cells)  # noise shortens the texts slightly
