"""Queues of computations: order, fairness, limits, deadlines, cancellation, and exceptions."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pytest
from tests.studio.serving import TIMEOUT_SECONDS, Endless

from seqloom.core.progress import Cancelled
from seqloom.studio.queues import DeadlineExceeded, QueueFull, Queues

T = TypeVar("T")


def in_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run in an event loop of another thread, because Playwright uses one in this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, asyncio.wait_for(main, TIMEOUT_SECONDS)).result()


async def compute(queues: Queues, key: str, function: Callable[[], T]) -> T:
    with queues.enter(key) as slot:
        return await slot.run(function)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_jobs_of_one_key_run_in_order() -> None:
    running, most, order = list[int](), list[int](), list[int]()

    def job(number: int) -> int:
        running.append(number)
        most.append(len(running))
        time.sleep(0.002)
        order.append(number)
        running.remove(number)
        return number

    async def main() -> list[int]:
        queues = Queues(workers=4)
        return list(await asyncio.gather(*(compute(queues, "a", partial(job, n)) for n in range(12))))

    assert in_loop(main()) == order == list(range(12))
    assert max(most) == 1


def test_different_keys_run_in_parallel() -> None:
    both = threading.Barrier(3, timeout=TIMEOUT_SECONDS)

    async def main() -> None:
        queues = Queues(workers=3)
        await asyncio.gather(*(compute(queues, key, both.wait) for key in "abc"))

    in_loop(main())


def test_requests_with_different_keys_are_served_alternately() -> None:
    """With one worker, the job of b runs second, although ten jobs of a arrived before it."""
    order: list[str] = []

    async def main() -> None:
        queues = Queues(workers=1)
        first = Endless()
        running = asyncio.create_task(compute(queues, "a", first))
        await until(first.began.is_set)
        keys = [*"aaaaaaaaaa", "b", "c"]
        waiting = [asyncio.create_task(compute(queues, key, partial(order.append, key))) for key in keys]
        await until(lambda: queues._held["c"] == 1)
        first.let_go.set()
        await asyncio.gather(running, *waiting)

    in_loop(main())
    assert order[:4] == ["a", "b", "c", "a"] and len(order) == 12


def test_full_queue_rejects_only_requests_of_its_key() -> None:
    async def main() -> None:
        queues = Queues(slots=3)
        slow = Endless()
        tasks = [asyncio.create_task(compute(queues, "a", slow)) for _ in range(3)]
        await until(slow.began.is_set)
        began = time.perf_counter()
        with pytest.raises(QueueFull, match="already has 3 pending requests"):
            await compute(queues, "a", lambda: None)
        assert time.perf_counter() - began < 1
        assert await compute(queues, "b", lambda: "answer") == "answer"
        slow.let_go.set()
        await asyncio.gather(*tasks)
        assert await compute(queues, "a", lambda: "again") == "again"

    in_loop(main())


def test_computation_stops_at_deadline() -> None:
    async def main() -> None:
        queues = Queues(deadline=0.1)
        slow = Endless()
        with pytest.raises(DeadlineExceeded, match=r"stopped after 0\.1 seconds"):
            await compute(queues, "a", slow)
        await until(slow.ended.is_set)
        assert not slow.let_go.is_set()
        assert await compute(queues, "a", lambda: "next") == "next"

    in_loop(main())


def test_deadline_includes_waiting_time() -> None:
    computed: list[str] = []
    finish = threading.Event()

    async def main() -> None:
        queues = Queues(workers=1, deadline=0.1)
        tasks = [
            asyncio.create_task(compute(queues, "a", lambda: finish.wait(TIMEOUT_SECONDS))),
            asyncio.create_task(compute(queues, "a", lambda: computed.append("late"))),
        ]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [DeadlineExceeded, DeadlineExceeded]
        finish.set()
        await compute(queues, "a", lambda: computed.append("in time"))

    in_loop(main())
    assert computed == ["in time"]


def test_cancelled_request_is_removed_from_the_queue() -> None:
    computed: list[int] = []

    async def main() -> None:
        queues = Queues(slots=60)
        slow = Endless()
        first = asyncio.create_task(compute(queues, "a", slow))
        await until(slow.began.is_set)
        waiting = [asyncio.create_task(compute(queues, "a", partial(computed.append, n))) for n in range(59)]
        await asyncio.sleep(0.01)
        for task in waiting[:-1]:
            task.cancel()
        await asyncio.wait(waiting[:-1])
        assert await compute(queues, "b", lambda: "b") == "b"
        slots = [queues.enter("a") for _ in range(58)]  # slots are available again
        for slot in slots:
            slot.leave()
        slow.let_go.set()
        await asyncio.gather(first, waiting[-1])

    in_loop(main())
    assert computed == [58]


def test_cancelled_computation_stops() -> None:
    async def main() -> None:
        queues = Queues()
        slow = Endless()
        task = asyncio.create_task(compute(queues, "a", slow))
        await until(slow.began.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(slow.ended.is_set)
        assert await compute(queues, "a", lambda: "next") == "next"

    in_loop(main())


def test_uncancellable_job_delays_only_its_key() -> None:
    """A computation that never checks for cancellation delays only its own model."""
    finish = threading.Event()

    async def main() -> None:
        queues = Queues()
        task = asyncio.create_task(compute(queues, "a", lambda: finish.wait(TIMEOUT_SECONDS)))
        await asyncio.sleep(0.02)
        task.cancel()
        next_of_a = asyncio.create_task(compute(queues, "a", lambda: "a"))
        assert await compute(queues, "b", lambda: "b") == "b"
        assert not next_of_a.done()
        finish.set()
        assert await next_of_a == "a"

    in_loop(main())


def test_exceptions_do_not_stop_the_worker() -> None:
    class Broken(BaseException):
        pass

    def fail(error: BaseException) -> None:
        raise error

    async def main() -> None:
        queues = Queues(workers=1)
        for error in (ValueError("wrong"), Cancelled(), MemoryError(), Broken(), RecursionError()):
            with pytest.raises(type(error)):
                await compute(queues, "a", partial(fail, error))
            assert await compute(queues, "a", lambda: "next") == "next"
        assert queues._threads == 1

    in_loop(main())


def test_slot_can_run_several_computations() -> None:
    order: list[str] = []

    async def in_pieces(queues: Queues, name: str) -> None:
        with queues.enter("a") as slot:
            for _ in range(3):
                await slot.run(lambda: order.append(name))

    async def main() -> None:
        queues = Queues(slots=2)
        await asyncio.gather(in_pieces(queues, "x"), in_pieces(queues, "y"))

    in_loop(main())
    assert order == ["x", "y"] * 3


def test_finish_callback_runs_after_cancellation() -> None:
    finished: list[bool] = []

    async def main() -> None:
        queues = Queues()
        slot, slow = queues.enter("a"), Endless()
        task = asyncio.create_task(slot.run(slow))
        await until(slow.began.is_set)
        task.cancel()
        slot.leave(finish=lambda: finished.append(slow.ended.is_set()))
        await until(lambda: bool(finished))

    in_loop(main())
    assert finished == [True]


def test_idle_threads_exit() -> None:
    async def main() -> None:
        queues = Queues(idle=0.05)
        assert await compute(queues, "a", lambda: 1) == 1
        await until(lambda: queues._threads == 0)
        assert await compute(queues, "a", lambda: 2) == 2
        assert not queues._held and not queues._waiting

    in_loop(main())


def test_many_requests_of_many_keys_receive_separate_results() -> None:
    """Some requests are cancelled. All other requests receive their results, and no state remains."""

    def job(number: int) -> int:
        time.sleep(0.0005)
        return number

    async def main() -> None:
        queues = Queues(workers=3, slots=100)
        tasks = [asyncio.create_task(compute(queues, f"key-{n % 7}", partial(job, n))) for n in range(400)]
        for number, task in enumerate(tasks):
            if number % 3 == 0:
                task.cancel()
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for number, answer in enumerate(answers):
            assert answer == number or (number % 3 == 0 and isinstance(answer, asyncio.CancelledError))
        await until(lambda: not queues._running)
        assert not queues._held and not queues._waiting

    in_loop(main())
