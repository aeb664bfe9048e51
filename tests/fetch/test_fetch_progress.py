"""Progress of a fetch: lines in the log, and a bar on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from clock import Clock

from trainer_core.fetch.progress import LogProgress
from trainer_core.fetch.settings import ENV_PREFIX
from trainer_core.model.logs import parse_progress

MB = 1_000_000


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def lines(clock):
    lines = LogProgress("dataset", clock)
    yield lines
    lines.end()


def read_progress(capsys):
    """Return the progress that followers parse from the printed lines."""
    return [progress for line in capsys.readouterr().out.splitlines() if (progress := parse_progress(line))]


def test_the_first_line_has_size_and_number_of_files(lines, capsys):
    lines.begin(1_500_000, 3)

    assert capsys.readouterr().out == "dataset: 1.5 MB in 3 files\n"


def test_a_line_has_the_number_of_files_and_the_rate(lines, clock, capsys):
    lines.begin(100 * MB, 10)
    lines.advance(40 * MB, 4)
    lines.print_if_changed()
    clock.now += 2
    lines.advance(20 * MB, 2)
    lines.print_if_changed()

    assert read_progress(capsys)[-1] == {"step": 60, "total": 100, "metrics": {"files": 6, "MB_per_second": 10.0}}


def test_a_few_bytes_are_rounded_up_to_a_thousandth_of_a_megabyte(lines, capsys):
    lines.begin(5, 1)
    lines.advance(4)
    lines.print_if_changed()

    (progress,) = read_progress(capsys)
    assert (progress["step"], progress["total"]) == (0.001, 0.001)


def test_unchanged_progress_is_not_printed_again(lines, capsys):
    lines.begin(100 * MB, 10)
    lines.advance(40 * MB, 4)
    lines.print_if_changed()
    lines.print_if_changed()

    assert len(read_progress(capsys)) == 1


def test_progress_is_printed_without_further_calls(lines, capsys):
    lines.begin(100 * MB, 10)
    lines.advance(40 * MB, 4)
    end, seen = time.monotonic() + 300, []
    while not seen and time.monotonic() < end:
        seen += read_progress(capsys)
        time.sleep(0.05)

    assert [progress["step"] for progress in seen] == [40]


def test_the_last_line_reports_all_bytes(clock, capsys):
    lines = LogProgress("dataset", clock)
    lines.begin(2 * MB, 1)
    lines.advance(2 * MB, 1)
    lines.end()

    assert [(progress["step"], progress["total"]) for progress in read_progress(capsys)] == [(2, 2)]


def test_empty_files_have_no_total(clock, capsys):
    lines = LogProgress("dataset", clock)
    lines.begin(0, 1)
    lines.advance(0, 1)
    lines.end()

    assert "total" not in read_progress(capsys)[-1]


def read_terminal(terminal):
    """Yield what ended programs wrote to a terminal, a few kilobytes at a time."""
    with suppress(OSError):
        while piece := os.read(terminal, 65536):
            yield piece.decode(errors="replace")


def test_a_terminal_shows_a_bar(tmp_path):
    (tmp_path / "data.csv").write_text("1,2")
    settings = {"ROLE": "dataset", "STORAGE_URI": (tmp_path / "data.csv").as_uri(), "CACHE": str(tmp_path / "cache")}
    env = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "120",
        **{ENV_PREFIX + name: value for name, value in settings.items()},
    }
    terminal, end = pty.openpty()

    done = subprocess.run(
        [sys.executable, "-m", "trainer_core.fetch"], env=env, stdout=subprocess.PIPE, stderr=end, timeout=300
    )

    os.close(end)
    shown = "".join(read_terminal(terminal))
    os.close(terminal)
    assert done.returncode == 0
    assert "3/3 bytes" in shown
    assert "1 of 1 files" in shown
    assert b"progress" not in done.stdout
