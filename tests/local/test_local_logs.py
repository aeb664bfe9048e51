"""Logs of local jobs: very long lines are returned in pieces, and a line keeps its time."""

from __future__ import annotations

import os

import pytest

from trainer_core.backends.local.log_times import record_growth

#: Characters of one, two and three bytes and carriage returns, so that each kind occurs where the line is cut.
LONG = "".join(f"\r{'é…' * (number % 7)}{number}" for number in range(120_000))
MAX_PIECE_BYTES = 400_000


@pytest.fixture
def ref(client, ask, home):
    """A finished job that printed one very long line and a short one."""
    ref = client.submit(ask())
    client.wait(ref)
    (home / "jobs/job/logs/node-0.log").write_text(f"{LONG}\nthe end\n", encoding="utf-8", newline="")
    return ref


def test_a_long_line_is_returned_in_pieces(client, ref):
    *pieces, last = client.get_job_logs(ref.name, follow=True)
    assert ("".join(pieces), last) == (LONG, "the end")
    assert len(pieces) > 3
    assert max(len(piece.encode()) for piece in pieces) < MAX_PIECE_BYTES


def test_a_long_line_is_continued_from_the_cursor(client, ref):
    pieces, place, complete = [], {}, False
    while not complete:
        tail = client.tail_job_logs(ref, place, job_ended=True)
        pieces += [line for _, line in tail.lines]
        place, complete = tail.cursor, tail.complete
    assert ("".join(pieces[:-1]), pieces[-1]) == (LONG, "the end")
    assert len(pieces) > 2


def test_a_line_has_the_same_time_before_and_after_it_is_recorded(client, ask, home):
    ref = client.submit(ask())
    client.wait(ref)
    log, times = home / "jobs/job/logs/node-0.log", home / "jobs/job/logs/node-0.times"
    log.write_text("one\ntwo\n")
    os.utime(log, (1_700_000_000.9, 1_700_000_000.9))
    times.write_bytes(b"")

    def read():
        return [(line, line.time) for _, line in client.tail_job_logs(ref, {}, job_ended=True).lines]

    assert read() == [("one", 1_700_000_000), ("two", 1_700_000_000)]
    record_growth(log, times, 0)
    with log.open("a") as file:
        file.write("three\n")
    os.utime(log, (1_700_000_007.2, 1_700_000_007.2))
    assert read() == [("one", 1_700_000_000), ("two", 1_700_000_000), ("three", 1_700_000_007)]
