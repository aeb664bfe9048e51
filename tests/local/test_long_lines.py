"""Very long lines, for example of progress bars, are returned in pieces, and no character is split."""

from __future__ import annotations

import pytest

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
