"""Queues of computations: order, fairness, limits, deadlines, cancellation, and exceptions."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pytest
from tests.studio.serving import PATIENCE, Endless

from seqloom.core.progress import Cancelled
from seqloom.studio.queues import DeadlineExceeded, QueueFull, Queues

T = TypeVar("T")


def in_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run in an event loop of its own thread: the browser of other tests has one in this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, asyncio.wait_for(main, PATIENCE)).result()


async def compute(queues: Queues, key: str, function: Callable[[], T]) -> T:
    with queues.enter(key) as place:
        return await place.run(function)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_jobs_of_one_key_run_one_at_a_time_in_their_order() -> None:
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


def test_different_keys_run_at_the_same_time() -> None:
    both = threading.Barrier(3, timeout=PATIENCE)

    async def main() -> None:
        queues = Queues(workers=3)
        await asyncio.gather(*(compute(queues, key, both.wait) for key in "abc"))

    in_loop(main())


def test_keys_take_turns_whatever_the_length_of_their_queues() -> None:
    """With one worker: ten jobs of a are there first, and the one of b comes second all the same."""
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


def test_a_full_queue_refuses_at_once_and_only_for_its_key() -> None:
    async def main() -> None:
        queues = Queues(places=3)
        slow = Endless()
        tasks = [asyncio.create_task(compute(queues, "a", slow)) for _ in range(3)]
        await until(slow.began.is_set)
        began = time.perf_counter()
        with pytest.raises(QueueFull, match="3 requests already wait for this model"):
            await compute(queues, "a", lambda: None)
        assert time.perf_counter() - began < 1
        assert await compute(queues, "b", lambda: "answer") == "answer"
        slow.let_go.set()
        await asyncio.gather(*tasks)
        assert await compute(queues, "a", lambda: "again") == "again"

    in_loop(main())


def test_a_computation_beyond_its_deadline_is_stopped() -> None:
    async def main() -> None:
        queues = Queues(deadline=0.1)
        slow = Endless()
        with pytest.raises(DeadlineExceeded, match=r"longer than 0\.1 seconds"):
            await compute(queues, "a", slow)
        await until(slow.ended.is_set)
        assert not slow.let_go.is_set()
        assert await compute(queues, "a", lambda: "next") == "next"

    in_loop(main())


def test_the_deadline_includes_the_time_in_the_queue() -> None:
    computed: list[str] = []
    finish = threading.Event()

    async def main() -> None:
        queues = Queues(workers=1, deadline=0.1)
        tasks = [
            asyncio.create_task(compute(queues, "a", lambda: finish.wait(PATIENCE))),
            asyncio.create_task(compute(queues, "a", lambda: computed.append("late"))),
        ]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [DeadlineExceeded, DeadlineExceeded]
        finish.set()
        await compute(queues, "a", lambda: computed.append("in time"))

    in_loop(main())
    assert computed == ["in time"]


def test_a_cancelled_request_leaves_the_queue_without_being_computed() -> None:
    computed: list[int] = []

    async def main() -> None:
        queues = Queues(places=60)
        slow = Endless()
        first = asyncio.create_task(compute(queues, "a", slow))
        await until(slow.began.is_set)
        waiting = [asyncio.create_task(compute(queues, "a", partial(computed.append, n))) for n in range(59)]
        await asyncio.sleep(0.01)
        for task in waiting[:-1]:
            task.cancel()
        await asyncio.wait(waiting[:-1])
        assert await compute(queues, "b", lambda: "b") == "b"
        places = [queues.enter("a") for _ in range(58)]  # their places are free again
        for place in places:
            place.leave()
        slow.let_go.set()
        await asyncio.gather(first, waiting[-1])

    in_loop(main())
    assert computed == [58]


def test_a_cancelled_request_that_runs_stops_at_its_next_step() -> None:
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


def test_what_ignores_its_cancellation_delays_its_own_key_alone() -> None:
    """A computation without steps cannot be stopped; whoever waits for another model does not notice."""
    finish = threading.Event()

    async def main() -> None:
        queues = Queues()
        task = asyncio.create_task(compute(queues, "a", lambda: finish.wait(PATIENCE)))
        await asyncio.sleep(0.02)
        task.cancel()
        next_of_a = asyncio.create_task(compute(queues, "a", lambda: "a"))
        assert await compute(queues, "b", lambda: "b") == "b"
        assert not next_of_a.done()
        finish.set()
        assert await next_of_a == "a"

    in_loop(main())


def test_exceptions_belong_to_their_request_and_the_worker_goes_on() -> None:
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


def test_one_place_computes_several_times_and_others_come_in_between() -> None:
    order: list[str] = []

    async def in_pieces(queues: Queues, name: str) -> None:
        with queues.enter("a") as place:
            for _ in range(3):
                await place.run(lambda: order.append(name))

    async def main() -> None:
        queues = Queues(places=2)
        await asyncio.gather(in_pieces(queues, "x"), in_pieces(queues, "y"))

    in_loop(main())
    assert order == ["x", "y"] * 3


def test_a_place_is_finished_with_even_if_its_request_was_cancelled() -> None:
    finished: list[bool] = []

    async def main() -> None:
        queues = Queues()
        place, slow = queues.enter("a"), Endless()
        task = asyncio.create_task(place.run(slow))
        await until(slow.began.is_set)
        task.cancel()
        place.leave(finish=lambda: finished.append(slow.ended.is_set()))
        await until(lambda: bool(finished))

    in_loop(main())
    assert finished == [True]


def test_threads_without_work_end_and_others_are_started() -> None:
    async def main() -> None:
        queues = Queues(idle=0.05)
        assert await compute(queues, "a", lambda: 1) == 1
        await until(lambda: queues._threads == 0)
        assert await compute(queues, "a", lambda: 2) == 2
        assert not queues._held and not queues._waiting

    in_loop(main())


def test_many_requests_of_many_keys_are_all_answered() -> None:
    """Some are cancelled at random moments; all others get their own answer, and nothing is left behind."""

    def job(number: int) -> int:
        time.sleep(0.0005)
        return number

    async def main() -> None:
        queues = Queues(workers=3, places=100)
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
