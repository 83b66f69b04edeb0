"""Cooperative cancellation: a cancelled computation stops at its next check, and only in its own thread."""

import threading

import pytest

from seqloom.core.progress import Cancellation, Cancelled, active_cancellation, check_cancelled


def test_cancellation_check_outside_an_active_block_has_no_effect() -> None:
    Cancellation().cancel()
    check_cancelled()
    assert active_cancellation() is None


def test_cancelled_computation_stops_at_next_check() -> None:
    cancellation = Cancellation()
    with cancellation.active():
        check_cancelled()
        cancellation.cancel()
        with pytest.raises(Cancelled):
            check_cancelled()
    check_cancelled()  # outside the block, nothing is cancelled


def test_other_threads_are_not_cancelled() -> None:
    cancellation, seen = Cancellation(), list[Cancellation | None]()
    cancellation.cancel()

    def compute() -> None:
        check_cancelled()
        seen.append(active_cancellation())

    with cancellation.active():
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    assert seen == [None]


def test_cancelling_a_parent_cancels_only_its_child() -> None:
    parent = Cancellation()
    child, sibling = Cancellation(parent), Cancellation(parent)
    sibling.cancel()
    assert sibling.is_cancelled and not parent.is_cancelled and not child.is_cancelled
    parent.cancel()
    assert child.is_cancelled


def test_outer_cancellation_is_restored_after_inner_block() -> None:
    outer, inner = Cancellation(), Cancellation()
    inner.cancel()
    with outer.active():
        with inner.active(), pytest.raises(Cancelled):
            check_cancelled()
        check_cancelled()
        assert active_cancellation() is outer
