"""How far a fetch is: for a person at a terminal, and for whoever follows the job."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from trainer_core.fetching.progress import Lines
from trainer_core.fetching.settings import PREFIX
from trainer_core.inside.progress import parse_progress

MB = 1_000_000


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines(clock):
    lines = Lines("dataset", clock)
    yield lines
    lines.end()


def told(capsys):
    """What programs read of the lines that were printed."""
    return [said for line in capsys.readouterr().out.splitlines() if (said := parse_progress(line))]


def test_the_first_line_says_how_much_it_is(lines, capsys):
    lines.begin(1_500_000, 3)

    assert capsys.readouterr().out == "dataset: 1.5 MB in 3 files\n"


def test_a_line_says_how_many_files_and_how_fast(lines, clock, capsys):
    lines.begin(100 * MB, 10)
    lines.advance(40 * MB, 4)
    lines.tell()
    clock.now += 2
    lines.advance(20 * MB, 2)
    lines.tell()

    assert told(capsys)[-1] == {"step": 60, "total": 100, "metrics": {"files": 6, "MB_per_second": 10.0}}


def test_there_is_no_line_without_news(lines, capsys):
    lines.begin(100 * MB, 10)
    lines.advance(40 * MB, 4)
    lines.tell()
    lines.tell()

    assert len(told(capsys)) == 1


def test_a_line_comes_although_nothing_else_does(lines, capsys):
    lines.begin(100 * MB, 10)
    lines.advance(40 * MB, 4)
    end, seen = time.monotonic() + 60, []
    while not seen and time.monotonic() < end:
        seen += told(capsys)
        time.sleep(0.05)

    assert [said["step"] for said in seen] == [40]


def test_the_last_line_says_that_all_is_there(clock, capsys):
    lines = Lines("dataset", clock)
    lines.begin(2 * MB, 1)
    lines.advance(2 * MB, 1)
    lines.end()

    assert [(said["step"], said["total"]) for said in told(capsys)] == [(2, 2)]


def test_empty_files_have_no_percentage(clock, capsys):
    lines = Lines("dataset", clock)
    lines.begin(0, 1)
    lines.advance(0, 1)
    lines.end()

    assert "total" not in told(capsys)[-1]


def everything_shown(terminal):
    """What a terminal was sent by programs that have ended; it hands over a few kilobytes at a time."""
    with suppress(OSError):
        while piece := os.read(terminal, 65536):
            yield piece.decode(errors="replace")


def test_a_person_at_a_terminal_sees_a_bar(tmp_path):
    (tmp_path / "data.csv").write_text("1,2")
    told = {"ROLE": "dataset", "STORAGE_URI": (tmp_path / "data.csv").as_uri(), "CACHE": str(tmp_path / "cache")}
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", **{PREFIX + name: value for name, value in told.items()}}
    terminal, end = pty.openpty()

    done = subprocess.run(
        [sys.executable, "-m", "trainer_core.fetching"], env=env, stdout=subprocess.PIPE, stderr=end, timeout=60
    )

    os.close(end)
    shown = "".join(everything_shown(terminal))
    os.close(terminal)
    assert done.returncode == 0
    assert "3/3 bytes" in shown
    assert "1 of 1 files" in shown
    assert b"progress" not in done.stdout
