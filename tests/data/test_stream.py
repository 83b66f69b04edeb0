from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seqloom.core.errors import DataError, UsageError
from seqloom.data.batching import StreamBatches
from seqloom.text import END

Side = Literal["inputs", "targets"]


@st.composite
def stream_batches(draw: st.DrawFn) -> StreamBatches:
    rows = draw(st.integers(1, 6))
    size = draw(st.integers(2 * rows, 80))
    return StreamBatches(torch.arange(1, size + 1), size=rows, length=draw(st.integers(1, 20)))


def complete_rows(batches: StreamBatches, name: Side, rank: int = 0, world: int = 1) -> Tensor:
    chunks = [batches.batch(step, rank, world)[name] for step in range(batches.steps_per_epoch)]
    return torch.cat(chunks, dim=1)


def test_batches_match_worked_example() -> None:
    batches = StreamBatches(torch.arange(10, 21), size=2, length=3)
    first, second = batches.batch(0), batches.batch(1)
    assert first["inputs"].tolist() == [[END, 10, 11], [14, 15, 16]]
    assert first["targets"].tolist() == [[10, 11, 12], [15, 16, 17]]
    assert second["inputs"].tolist() == [[12, 13], [17, 18]]
    assert second["targets"].tolist() == [[13, 14], [18, 19]]
    assert (first["fresh"], second["fresh"]) == (True, False)
    assert batches.left_out == 1
    assert batches.shapes() == {(2, 3), (2, 2)}


@given(stream_batches())
def test_every_token_is_predicted_once_except_remainder(batches: StreamBatches) -> None:
    targets = complete_rows(batches, "targets").flatten()  # the rows in order form the stream
    used = len(batches.stream) - batches.left_out
    assert targets.tolist() == batches.stream[:used].tolist()
    assert batches.left_out < batches.size


@given(stream_batches())
def test_inputs_precede_targets_within_rows(batches: StreamBatches) -> None:
    inputs, targets = complete_rows(batches, "inputs"), complete_rows(batches, "targets")
    assert inputs[:, 1:].tolist() == targets[:, :-1].tolist()  # no token is skipped between chunks
    assert inputs[:, 0].tolist() == [END, *targets[:-1, -1].tolist()]
    for row in range(batches.size):
        assert inputs[row].max() <= (row + 1) * batches.row_length


@given(stream_batches())
def test_shapes_match_declared_shapes(batches: StreamBatches) -> None:
    observed = {tuple(batches.batch(step)["targets"].shape) for step in range(batches.steps_per_epoch)}
    assert observed == batches.shapes()
    assert len(observed) <= 2


@given(stream_batches(), st.integers(0, 50))
def test_further_epochs_repeat_the_text_and_reset_the_state(batches: StreamBatches, step: int) -> None:
    first, second = batches.batch(step), batches.batch(step + batches.steps_per_epoch)
    assert first["fresh"] is second["fresh"] is (step % batches.steps_per_epoch == 0)
    assert torch.equal(first["inputs"], second["inputs"])
    assert torch.equal(first["targets"], second["targets"])


@given(stream_batches(), st.integers(1, 6))
def test_ranks_partition_rows(batches: StreamBatches, world: int) -> None:
    if batches.size % world:
        with pytest.raises(UsageError, match="must be a multiple of the number of processes"):
            batches.batch(0, 0, world)
        return
    sides: list[Side] = ["inputs", "targets"]
    for name in sides:
        ranks = [complete_rows(batches, name, rank, world) for rank in range(world)]
        assert torch.equal(torch.cat(ranks), complete_rows(batches, name))
    shapes = {tuple(batches.batch(step, world - 1, world)["inputs"].shape) for step in range(batches.steps_per_epoch)}
    assert shapes == batches.shapes(world)


def test_changing_a_batch_does_not_change_the_stream() -> None:
    batches = StreamBatches(torch.arange(1, 20), size=1, length=5)
    for step in (0, 1):
        batch = batches.batch(step)
        batch["inputs"].zero_()
        batch["targets"].zero_()
    assert batches.stream.tolist() == list(range(1, 20))


@pytest.mark.parametrize("size", [0, 1, 7])
def test_too_short_text_is_rejected(size: int) -> None:
    with pytest.raises(DataError, match=f"4 rows need at least 8 tokens, but the text has {size}"):
        StreamBatches(torch.ones(size, dtype=torch.long), size=4, length=3)


@pytest.mark.parametrize(("rows", "chunk"), [(0, 3), (3, 0), (-1, 1)])
def test_impossible_sizes_are_rejected(rows: int, chunk: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        StreamBatches(torch.arange(10), size=rows, length=chunk)


@given(stream_batches(), st.integers(0, 200))
def test_offset_rotates_stream(batches: StreamBatches, offset: int) -> None:
    size = len(batches.stream)
    rotated = StreamBatches(batches.stream.roll(-offset), batches.size, batches.length)
    for step in range(batches.steps_per_epoch):
        actual, expected = batches.batch(step, offset=offset), rotated.batch(step)
        assert actual["targets"].tolist() == expected["targets"].tolist()
        # In the rotated stream, a token precedes the position where a stream otherwise starts with END
        if step == 0 and offset:
            expected["inputs"][0, 0] = batches.stream[(offset - 1) % size]
        assert actual["inputs"].tolist() == expected["inputs"].tolist()
