"""Requests to stop: deferred during steps and saves, and immediate in interruptible blocks."""

import os
import signal

import pytest

from seqloom.core.errors import Interrupted
from seqloom.train.stop import Stop


def test_request_outside_an_interruptible_block_is_stored():
    stop = Stop()
    stop.request()
    assert stop.requested


def test_request_inside_a_block_interrupts_with_exit_code_75():
    stop, reached = Stop(), []
    with pytest.raises(Interrupted) as caught, stop.interruptible():
        stop.request()
        reached.append("after")
    assert not reached
    assert caught.value.exit_code == 75


def test_entering_a_block_after_a_request_raises_an_error():
    stop, reached = Stop(), []
    stop.request()
    with pytest.raises(Interrupted), stop.interruptible():
        reached.append("inside")
    assert not reached


def test_second_request_does_not_interrupt_the_save():
    stop = Stop()
    with pytest.raises(Interrupted), stop.interruptible():
        stop.request()
    stop.request()
    assert stop.requested


def test_request_at_the_end_of_a_block_resets_its_state():
    """A signal may arrive at the end of the block. The code after the block must not be interruptible."""
    stop = Stop()
    block = stop.interruptible()
    block.__enter__()
    with pytest.raises(Interrupted):
        stop.request()
    stop.request()  # must not raise an error, although the block was not left normally


def test_blocks_can_be_nested():
    stop = Stop()
    with stop.interruptible(), stop.interruptible():
        pass
    stop.request()
    assert stop.requested


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_request_a_stop_and_handlers_are_restored(number):
    before = signal.getsignal(number)
    stop = Stop()
    with stop.on_signals():
        os.kill(os.getpid(), number)
        assert stop.requested
    assert signal.getsignal(number) is before
    with Stop().on_signals(), pytest.raises(Interrupted), stop.interruptible():
        pass
