"""Lines that never end, as progress bars print them, are read in pieces, and no character is cut in two."""

from __future__ import annotations

import pytest

#: Of characters of one byte, two and three, and of returns, so that each is met where lines are cut.
LONG = "".join(f"\r{'é…' * (number % 7)}{number}" for number in range(120_000))
MOST = 400_000


@pytest.fixture
def ref(client, ask, home):
    """A job that has ended and printed one long line and a short one."""
    ref = client.submit(ask())
    client.wait(ref)
    (home / "jobs/job/logs/node-0.log").write_text(f"{LONG}\nthe end\n", encoding="utf-8", newline="")
    return ref


def test_a_long_line_is_given_in_pieces(client, ref):
    *pieces, last = client.get_job_logs(ref.name, follow=True)
    assert ("".join(pieces), last) == (LONG, "the end")
    assert len(pieces) > 3
    assert max(len(piece.encode()) for piece in pieces) < MOST


def test_a_long_line_is_read_on_from_a_place(client, ref):
    pieces, place, complete = [], {}, False
    while not complete:
        tail = client.backend.tail(ref, place, whole=True)
        pieces += [line for _, line in tail.lines]
        place, complete = tail.place, tail.complete
    assert ("".join(pieces[:-1]), pieces[-1]) == (LONG, "the end")
    assert len(pieces) > 2
