"""Several sources of lines as one."""

from __future__ import annotations

import threading

import pytest

from trainer_core.interleave import interleaved


@pytest.fixture
def readers():
    """The threads that read lines for this test."""
    before = set(threading.enumerate())
    return lambda: [t for t in threading.enumerate() if t.name.startswith("lines of ") and t not in before]


def end_of(threads):
    for thread in threads:
        thread.join(timeout=60)
    return [thread for thread in threads if thread.is_alive()]


def test_all_lines_come_each_with_its_source_and_in_the_order_of_its_source(readers):
    sources = {name: iter([f"{name} {number}" for number in range(5000)]) for name in ("a", "b", "c")}
    found = list(interleaved(sources))
    assert [line for name, line in found if name == "b"] == [f"b {number}" for number in range(5000)]
    assert {line.split()[0] == name for name, line in found} == {True}
    assert len(found) == 15_000
    assert readers() == []


def test_nothing_is_nothing():
    assert list(interleaved({})) == []


def test_a_source_that_is_silent_does_not_keep_back_another():
    go_on = threading.Event()

    def silent():
        go_on.wait(60)
        yield "late"

    lines = interleaved({"silent": silent(), "loud": iter(["early"])})
    assert next(lines) == ("loud", "early")
    go_on.set()
    assert list(lines) == [("silent", "late")]


def test_what_a_source_raises_is_raised():
    def broken():
        yield "a"
        raise ValueError("broken")

    lines = interleaved({"broken": broken()})
    assert next(lines) == ("broken", "a")
    with pytest.raises(ValueError, match="broken"):
        next(lines)


def test_no_thread_is_left_when_it_is_closed_early(readers):
    closed = threading.Semaphore(0)

    def endless():
        try:
            while True:
                yield "line"
        finally:
            closed.release()

    lines = interleaved({str(number): endless() for number in range(8)})
    next(lines)
    threads = readers()
    lines.close()
    assert end_of(threads) == []
    assert all(closed.acquire(timeout=60) for _ in range(8))
