"""The simulated event loop: time, order, processes, and the error when no task can run."""

from __future__ import annotations

import asyncio

import pytest

from proof.sim.loop import Schedule, SimLoop, SimProcess, Stuck


def steps_of(seed: int, schedule: Schedule, tasks: int = 4, steps: int = 3) -> list[str]:
    """Return the steps of all tasks in the order of their execution."""
    loop = SimLoop(seed, schedule)
    order: list[str] = []

    async def walk(name: str) -> None:
        for step in range(steps):
            order.append(f"{name}{step}")
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(walk("abcdefgh"[number]) for number in range(tasks)))

    loop.run_until_complete(main())
    loop.dispose()
    return order


def test_time_jumps_to_the_next_timer() -> None:
    loop = SimLoop(1)

    async def main() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert loop.run_until_complete(main()) == 3600
    loop.dispose()


def test_fifo_is_the_order_of_asyncio() -> None:
    assert steps_of(1, "fifo") == [f"{name}{step}" for step in range(3) for name in "abcd"]


@pytest.mark.parametrize("schedule", ["random", "priority"])
def test_order_depends_on_the_seed_alone(schedule: Schedule) -> None:
    orders = {tuple(steps_of(seed, schedule)) for seed in range(20)}
    assert len(orders) > 10
    assert steps_of(7, schedule) == steps_of(7, schedule)


@pytest.mark.parametrize("seed", range(10))
def test_order_within_a_task_is_kept(seed: int) -> None:
    order = steps_of(seed, "random")
    assert all([note for note in order if note[0] == name] == [f"{name}{step}" for step in range(3)] for name in "abcd")


def test_callbacks_of_one_task_keep_their_order() -> None:
    for seed in range(20):
        loop = SimLoop(seed, "random")
        called: list[int] = []

        async def main() -> None:
            for number in range(5):
                asyncio.get_running_loop().call_soon(called.append, number)  # noqa: B023
            await asyncio.sleep(1)

        loop.run_until_complete(main())
        loop.dispose()
        assert called == [0, 1, 2, 3, 4]


def test_a_killed_process_is_frozen_and_runs_no_finally() -> None:
    loop = SimLoop(1)
    order: list[str] = []

    async def work() -> None:
        try:
            order.append("begun")
            await asyncio.sleep(5)
            order.append("went on")
        finally:
            order.append("cleaned up")

    async def main() -> None:
        process = SimProcess("server")
        task = loop.spawn(process, work(), "work")
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        order.append("frozen" if not task.done() else "done")

    loop.run_until_complete(main())
    loop.dispose()
    assert order == ["begun", "frozen"]


def test_a_paused_process_continues_with_what_has_happened() -> None:
    loop = SimLoop(1)
    order: list[str] = []

    async def work() -> None:
        for number in range(3):
            await asyncio.sleep(1)
            order.append(f"work {number} at {loop.time():g}")

    async def main() -> None:
        process = SimProcess("server")
        task = loop.spawn(process, work(), "work")
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(8.5)
        order.append("awake")
        loop.resume(process)
        await task

    loop.run_until_complete(main())
    loop.dispose()
    assert order == ["work 0 at 1", "awake", "work 1 at 10", "work 2 at 11"]


def test_tasks_belong_to_the_process_that_starts_them() -> None:
    loop = SimLoop(1)
    order: list[str] = []

    async def child() -> None:
        await asyncio.sleep(5)
        order.append("child")

    async def parent() -> None:
        await asyncio.gather(asyncio.create_task(child()), child())

    async def main() -> None:
        process = SimProcess("server")
        loop.spawn(process, parent(), "parent")
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    loop.dispose()
    assert order == []


def test_a_deadlock_raises_stuck() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="no task can continue"):
        loop.run_until_complete(main())
    loop.dispose()


def test_an_endless_loop_raises_stuck() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="not finished after"):
        loop.run_until_complete(main())
    loop.dispose()


def test_an_error_that_is_never_retrieved_is_reported() -> None:
    loop = SimLoop(1)

    async def fails() -> None:
        raise ValueError("lost")

    async def main() -> None:
        asyncio.create_task(fails(), name="the task")  # noqa: RUF006
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert loop.complaints() == ["the error of the task was never retrieved: ValueError('lost')"]
    loop.dispose()
