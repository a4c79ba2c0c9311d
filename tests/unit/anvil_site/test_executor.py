"""The pool of threads: order, bounds, what it tells, and its end."""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from anvil_site.executor import Executor
from telemetry.evidence import ExecutorReading

PATIENCE = 5.0


@pytest.fixture
def pool() -> Iterator[Executor]:
    pool = Executor(2, name="test")
    yield pool
    pool.shutdown(wait=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def test_it_tells_how_busy_it_is(pool: Executor) -> None:
    assert pool.reading() == ExecutorReading(busy=0, waiting=0)
    for _ in range(2):
        go_on = threading.Event()
        for _ in range(5):
            pool.submit(go_on.wait, PATIENCE)
        assert pool.reading() == ExecutorReading(busy=2, waiting=3)
        go_on.set()
        until(lambda: pool.reading() == ExecutorReading(busy=0, waiting=0))


def test_a_thread_is_started_only_when_every_other_one_is_busy(pool: Executor) -> None:
    names: list[str] = []
    for number in range(3):
        pool.submit(lambda: names.append(threading.current_thread().name))
        until(lambda number=number: len(names) == number + 1 and pool.reading().busy == 0)  # type: ignore[misc]
    assert names == ["test_0", "test_0", "test_0"]

    meeting = threading.Barrier(3)
    for _ in range(2):
        pool.submit(lambda: (names.append(threading.current_thread().name), meeting.wait(PATIENCE)))
    meeting.wait(PATIENCE)
    assert sorted(names[3:]) == ["test_0", "test_1"]


def test_work_begins_in_the_order_in_which_it_came() -> None:
    pool, begun = Executor(1, name="one"), []
    for number in range(50):
        pool.submit(begun.append, number)
    until(lambda: len(begun) == 50)
    assert begun == list(range(50))
    pool.shutdown(wait=True)


def test_what_fails_is_told_and_counts_no_longer(pool: Executor, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            pool.submit(lambda: 1 // 0)
        pool.submit(done.set)
        assert done.wait(PATIENCE)
        until(lambda: pool.reading() == ExecutorReading(busy=0, waiting=0))
    assert [record.getMessage() for record in caplog.records] == ["work failed in test"] * 3


def test_its_end_forgets_what_has_not_begun_and_takes_no_more() -> None:
    pool, began, go_on, ran = Executor(1, name="test"), threading.Event(), threading.Event(), []
    pool.submit(lambda: (began.set(), go_on.wait(PATIENCE), ran.append("first")))
    pool.submit(ran.append, "second")
    assert began.wait(PATIENCE)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(ran.append, "third")
    go_on.set()
    pool.shutdown(wait=True)
    until(lambda: pool.reading() == ExecutorReading(busy=0, waiting=0))
    assert ran == ["first"]


def test_without_a_thread_to_be_had_work_waits_for_the_next_that_is(
    pool: Executor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    with monkeypatch.context() as patch:

        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", refuse)
        pool.submit(ran.append, 1)
    assert pool.reading() == ExecutorReading(busy=0, waiting=1)
    assert [record.getMessage() for record in caplog.records] == ["no thread could be started in test"]
    pool.submit(ran.append, 2)
    until(lambda: len(ran) == 2)
    assert sorted(ran) == [1, 2]


def test_no_name_of_the_work_stays_with_a_thread_that_sleeps(pool: Executor) -> None:
    class Work:
        def __call__(self) -> None: ...

    gone = threading.Event()
    work = Work()
    weakref.finalize(work, gone.set)
    pool.submit(work)
    del work
    assert gone.wait(PATIENCE)
