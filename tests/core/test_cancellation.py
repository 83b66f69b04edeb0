"""Cooperative cancellation: what is cancelled stops at its next step, in its own thread alone."""

import threading

import pytest

from seqloom.core.progress import Cancellation, Cancelled, active_cancellation, check_cancelled


def test_check_does_nothing_outside_an_active_block() -> None:
    Cancellation().cancel()
    check_cancelled()
    assert active_cancellation() is None


def test_cancelled_computation_stops_at_its_next_check() -> None:
    cancellation = Cancellation()
    with cancellation.active():
        check_cancelled()
        cancellation.cancel()
        with pytest.raises(Cancelled):
            check_cancelled()
    check_cancelled()  # the block is over


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


def test_child_is_cancelled_with_its_parent_and_not_the_other_way_round() -> None:
    parent = Cancellation()
    child, sibling = Cancellation(parent), Cancellation(parent)
    sibling.cancel()
    assert sibling.is_cancelled and not parent.is_cancelled and not child.is_cancelled
    parent.cancel()
    assert child.is_cancelled


def test_inner_block_ends_with_the_outer_cancellation_active_again() -> None:
    outer, inner = Cancellation(), Cancellation()
    inner.cancel()
    with outer.active():
        with inner.active(), pytest.raises(Cancelled):
            check_cancelled()
        check_cancelled()
        assert active_cancellation() is outer
