"""Log cursors, for engines whose timestamps have a resolution of one second."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from container_jobs import exited, running
from hypothesis import given, strategies as st

from trainer_core.backends.container.engine import EngineRequestError
from trainer_core.backends.container.logs import (
    ContainerLogCursor,
    LogReader,
    LogStream,
    find_tail_cursor,
)

OUT, ERR = 1, 2


def frame(second: int, piece: str, output: int = OUT) -> tuple[int, bytes]:
    return output, f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z {piece}".encode()


def podman_frames(lines):
    """Podman returns each line and its line end in separate frames."""
    return [frame(second, piece) for second, line in lines for piece in (line, "\n")]


def docker_frames(lines):
    return [frame(second, f"{line}\n") for second, line in lines]


def read_lines(frames, cursor, ended, limit):
    """Read a part of a log with one request."""
    return LogStream(frames, cursor, ended).read(limit)


def read_all(frames, limit, ended=True):
    """Read everything, and pass the cursor on as JSON, as between processes."""
    lines, cursor = [], ContainerLogCursor()
    while True:
        read = read_lines(frames, cursor, ended, limit)
        lines += read.lines
        cursor = ContainerLogCursor.from_dict(json.loads(json.dumps(read.cursor.to_dict())))
        if read.complete:
            return lines, cursor


LINES = [(0, "a"), (0, "b"), (0, "b"), (9, "c"), (9, ""), (30, "d"), (31, "d"), (61, "e")]


@pytest.mark.parametrize("to_frames", [podman_frames, docker_frames])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_every_line_is_returned_once_for_any_limit(to_frames, limit):
    assert read_all(to_frames(LINES), limit)[0] == [line for _, line in LINES]


def test_a_cursor_is_close_to_the_end_so_that_little_is_read_again():
    _, place = read_all(podman_frames(LINES), 100)
    base = ContainerLogCursor().since
    assert place.since - base > 0
    assert place.pieces == 2


def test_the_tail_cursor_has_the_requested_number_of_lines_after_it():
    place = find_tail_cursor(docker_frames(LINES)[-3:], 3)
    later = [each for each in podman_frames(LINES) if each[1] >= frame(30, "")[1]]
    assert read_lines(later, place, ended=True, limit=100).lines == ["d", "d", "e"]


def test_the_tail_cursor_of_a_short_log_is_its_start():
    # Podman before 4.7 returns only the end of a line that was written in two pieces.
    assert find_tail_cursor([frame(30, "\n")], 50) == ContainerLogCursor()


def test_later_lines_of_the_same_second_are_not_lost():
    first = podman_frames([(5, "a"), (5, "b")])
    read = read_lines(first, ContainerLogCursor(), ended=False, limit=100)
    again = read_lines([*first, *podman_frames([(5, "c"), (5, "b")])], read.cursor, ended=False, limit=100)
    assert (read.lines, again.lines) == (["a", "b"], ["c", "b"])


@pytest.mark.parametrize("to_frames", [podman_frames, docker_frames])
def test_no_new_line_is_skipped_after_the_engine_has_rotated_the_log(to_frames):
    _, cursor = read_all(to_frames([(0, "a"), (1, "b"), (2, "c")]), 100)
    rotated = to_frames([(2, "d"), (2, "e"), (3, "f"), (3, "g")])
    assert read_lines(rotated, cursor, ended=True, limit=100).lines == ["d", "e", "f", "g"]


def test_an_unfinished_line_is_returned_when_it_is_complete():
    unfinished = [frame(0, "half")]
    read = read_lines(unfinished, ContainerLogCursor(), ended=False, limit=100)
    # The second half is written a minute later.
    again = read_lines([*unfinished, frame(60, " a line"), frame(60, "\n")], read.cursor, ended=False, limit=100)
    assert (read.lines, again.lines) == ([], ["half a line"])


def test_an_unfinished_last_line_is_returned_after_the_end():
    assert read_lines([frame(0, "the end")], ContainerLogCursor(), ended=True, limit=100).lines == ["the end"]


def test_a_line_in_several_frames_is_one_line():
    assert read_lines(
        [frame(0, "x" * 8000), frame(0, "y" * 8000), frame(0, "\n")], ContainerLogCursor(), True, 9
    ).lines == ["x" * 8000 + "y" * 8000]


def test_a_very_long_line_is_returned_in_pieces_and_each_piece_once():
    endless = [frame(second, "x" * 40_000) for second in range(4)]
    read = read_lines(endless, ContainerLogCursor(), ended=False, limit=100)
    again = read_lines([*endless, frame(9, "\n")], read.cursor, ended=False, limit=100)
    assert [len(line) for line in (*read.lines, *again.lines)] == [80_000, 80_000, 0]


def test_a_progress_bar_keeps_its_last_state_and_no_carriage_return():
    assert read_lines([frame(0, "10%\r100%\r\n")], ContainerLogCursor(), True, 9).lines == ["10%\r100%"]


class OneLog:
    """Engine of one container, whose log is None once it is removed. Counts the frames that it returns."""

    def __init__(self, *frames, seconds=0):
        self.frames, self.seconds, self.returned = list(frames), seconds, 0

    def now(self):
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.seconds)

    def stream_log(self, container, since, tail=None):
        if self.frames is None:
            raise EngineRequestError("no such container", "unix:///engine.sock")
        for each in self.frames[-(tail or 0) :]:
            written = datetime.fromisoformat(each[1].partition(b" ")[0].decode().replace("Z", "+00:00"))
            if written.timestamp() >= since:
                self.returned += 1
                yield each


def test_the_last_progress_stays_when_other_lines_follow_and_when_the_container_is_removed():
    engine, node = OneLog(frame(0, '[trainjob:progress] {"step": 3}\n')), running("node-0")
    reader = LogReader(engine)
    assert reader.read_progress(node).step == 3
    engine.frames.append(frame(9, "epoch 1\n"))
    assert reader.read_progress(node).step == 3
    engine.frames.append(frame(20, '[trainjob:progress] {"step": 5}\n'))
    assert reader.read_progress(node).step == 5
    engine.frames = None
    assert reader.read_progress(node).step == 5


@pytest.mark.parametrize("node", [running("node-0"), exited("node-0")])
def test_a_log_that_is_read_in_chunks_is_requested_at_most_twice(node):
    engine = OneLog(*docker_frames([(7, str(number)) for number in range(1000)]))
    reader, found, cursor, complete = LogReader(engine), [], ContainerLogCursor(), False
    while not complete:
        read = reader.read(node, cursor, False, 3)
        found, cursor, complete = found + read.lines, read.cursor, read.complete
    assert found == [str(number) for number in range(1000)]
    assert engine.returned <= 2 * len(engine.frames)


def test_lines_that_were_written_after_a_request_are_read_when_the_container_has_exited():
    engine = OneLog(*docker_frames([(1, "a"), (1, "b"), (1, "c")]))
    reader = LogReader(engine)
    first = reader.read(running("node-0"), ContainerLogCursor(), False, 2)
    engine.frames.append(frame(2, "the end"))
    rest = reader.read(exited("node-0"), first.cursor, True, 9)
    assert (first.lines, rest.lines, rest.complete) == (["a", "b"], ["c", "the end"], True)


def test_a_log_without_new_lines_is_not_read_again():
    engine, node = OneLog(*docker_frames([(7, "a")] * 1000), seconds=8), running("node-0")
    reader = LogReader(engine)
    reader.read_progress(node)
    engine.seconds, engine.returned = 90, 0
    reader.read_progress(node)
    assert engine.returned == 1000
    reader.read_progress(node)
    engine.frames += docker_frames([(90, '[trainjob:progress] {"step": 3}')])
    assert reader.read_progress(node).step == 3
    assert engine.returned == 1001


def test_a_line_of_the_other_stream_is_not_joined_with_an_unfinished_line():
    frames = [frame(0, "10%"), frame(0, "a", ERR), frame(0, "\n", ERR), frame(1, "20%"), frame(1, "\n")]
    assert read_all(frames, 100)[0] == ["10%", "a", "20%"]
    assert read_all(frames, 1)[0] == ["10%", "a", "20%"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=5))
    ),
    st.lists(st.integers(1, 5), min_size=1),
)
def test_no_line_is_lost_or_repeated_for_any_sequence_of_reads(gaps, steps):
    second, lines = 0, []
    for gap, text in gaps:
        second += gap * 4
        lines.append((second, text))
    written = [piece for line in lines for piece in podman_frames([line])]
    found, place, engine = [], ContainerLogCursor(), OneLog()
    processes = [LogReader(engine), LogReader(engine)]
    for count in range(len(written) + 1):
        most, reader = steps[count % len(steps)], processes[steps[count // 2 % len(steps)] % 2]
        engine.frames, engine.seconds = written[:count], second_of(written[:count]) + 3 * most
        read = reader.read(running("node-0"), place, False, most)
        found, place = found + read.lines, read.cursor
    while not (read := processes[0].read(exited("node-0"), place, True, 7)).complete or read.lines:
        found, place = found + read.lines, read.cursor
    assert found == [text for _, text in lines]


def second_of(frames):
    return int(frames[-1][1][17:19]) + 60 * int(frames[-1][1][14:16]) if frames else 0
