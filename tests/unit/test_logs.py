"""Log lines: merged streams and chunks with cursors."""

from __future__ import annotations

import threading

import pytest

from trainer_core.logs import merge_streams


@pytest.fixture
def readers():
    """The threads that read lines for this test."""
    before = set(threading.enumerate())
    return lambda: [t for t in threading.enumerate() if t.name.startswith("lines of ") and t not in before]


def end_of(threads):
    for thread in threads:
        thread.join(timeout=300)
    return [thread for thread in threads if thread.is_alive()]


def test_each_line_has_its_stream_and_streams_keep_their_order(readers):
    sources = {name: iter([f"{name} {number}" for number in range(5000)]) for name in ("a", "b", "c")}
    found = list(merge_streams(sources))
    assert [line for name, line in found if name == "b"] == [f"b {number}" for number in range(5000)]
    assert {line.split()[0] == name for name, line in found} == {True}
    assert len(found) == 15_000
    assert readers() == []


def test_no_streams_give_no_lines():
    assert list(merge_streams({})) == []


def test_a_stream_without_lines_does_not_block_another():
    go_on = threading.Event()

    def silent():
        go_on.wait(60)
        yield "late"

    lines = merge_streams({"silent": silent(), "loud": iter(["early"])})
    assert next(lines) == ("loud", "early")
    go_on.set()
    assert list(lines) == [("silent", "late")]


def test_the_error_of_a_stream_is_raised():
    def broken():
        yield "a"
        raise ValueError("broken")

    lines = merge_streams({"broken": broken()})
    assert next(lines) == ("broken", "a")
    with pytest.raises(ValueError, match="broken"):
        next(lines)


def test_closing_early_leaves_no_thread(readers):
    closed = threading.Semaphore(0)

    def endless():
        try:
            while True:
                yield "line"
        finally:
            closed.release()

    lines = merge_streams({str(number): endless() for number in range(8)})
    next(lines)
    threads = readers()
    lines.close()
    assert end_of(threads) == []
    assert all(closed.acquire(timeout=300) for _ in range(8))
