"""Requests to stop: remembered where something could be lost, obeyed at once where nothing can."""

import os
import signal

import pytest

from seqloom.core.errors import Interrupted
from seqloom.train.stop import Stop


def test_outside_an_interruptible_block_a_request_is_only_remembered():
    stop = Stop()
    stop.request()
    assert stop.requested


def test_inside_it_breaks_off_at_once_and_exits_75():
    stop, reached = Stop(), []
    with pytest.raises(Interrupted) as caught, stop.interruptible():
        stop.request()
        reached.append("after")
    assert not reached
    assert caught.value.exit_code == 75


def test_a_block_entered_after_the_request_does_not_begin():
    stop, reached = Stop(), []
    stop.request()
    with pytest.raises(Interrupted), stop.interruptible():
        reached.append("inside")
    assert not reached


def test_a_second_request_does_not_break_off_the_saving_that_follows():
    stop = Stop()
    with pytest.raises(Interrupted), stop.interruptible():
        stop.request()
    stop.request()
    assert stop.requested


def test_a_request_during_the_last_moment_of_a_block_leaves_no_trace_of_it():
    """The signal may arrive while the block is being left: what follows must not be interruptible any more."""
    stop = Stop()
    block = stop.interruptible()
    block.__enter__()
    with pytest.raises(Interrupted):
        stop.request()
    stop.request()  # the block was never left, and yet this does not raise


def test_blocks_may_be_nested():
    stop = Stop()
    with stop.interruptible(), stop.interruptible():
        pass
    stop.request()
    assert stop.requested


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_requests_and_the_old_handlers_return(number):
    before = signal.getsignal(number)
    stop = Stop()
    with stop.on_signals():
        os.kill(os.getpid(), number)
        assert stop.requested
    assert signal.getsignal(number) is before
    with Stop().on_signals(), pytest.raises(Interrupted), stop.interruptible():
        pass
