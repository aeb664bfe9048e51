"""LogCursor returns each line of a log once, from overlapping streams in pieces of any size."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given, settings, strategies as st

from trainer_core.k8s.log_cursor import CursorLostError, LogCursor

START = 1_700_000_000
SECOND = 10**9
MAX_BYTES = 100


def stamp(nanoseconds: int) -> bytes:
    seconds, rest = divmod(nanoseconds, SECOND)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z".encode()


def body(log: list[tuple[int, bytes]], since: str | None = None) -> bytes:
    """Return the log as the kubelet sends it: lines since a second, with timestamps."""
    first = datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp() * SECOND if since else 0
    return b"".join(stamp(when) + b" " + line + b"\n" for when, line in log if when >= first)


def feed(cursor: LogCursor, data: bytes, sizes: list[int]) -> list[str]:
    """Feed the data in blocks of these sizes, repeated cyclically."""
    lines, position, turn = [], 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        lines += cursor.feed(data[position : position + size])
        position, turn = position + size, turn + 1
    return lines


def text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "backslashreplace")


contents = st.one_of(
    st.binary(max_size=8).map(lambda data: data.replace(b"\n", b"")),
    st.text(alphabet="aé€😀\r", max_size=6).map(str.encode),
    st.sampled_from([b"", b"same", b"2023-11-14T22:13:20.000000000Z looks like a time", b"\xff\xfe", b"50%\r100%\r"]),
)
# Few different timestamps, so that many are equal; out of order by less than five seconds, as node clocks may jump.
times = st.tuples(st.integers(0, 3), st.sampled_from([0, 1, SECOND - 1, SECOND, 4 * SECOND]))


@st.composite
def logs(draw, content=contents) -> list[tuple[int, bytes]]:
    now, found = START * SECOND, []
    for line in draw(st.lists(content, max_size=25)):
        step, jitter = draw(times)
        now += step * SECOND // 2
        found.append((now + jitter, line))
    return found


cuts = st.lists(st.integers(0, 1500), max_size=6)
sizes = st.lists(st.integers(1, 200), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(logs(), cuts, sizes)
def test_each_line_is_returned_once_wherever_streams_are_interrupted(log, cuts, sizes):
    cursor, lines = LogCursor(), []
    for cut in cuts:
        lines += feed(cursor, body(log, cursor.start_stream(strict=bool(cursor.position)))[:cut], sizes)
    lines += feed(cursor, body(log, cursor.start_stream(strict=bool(cursor.position))), sizes)

    assert lines + cursor.flush() == [text(line) for _, line in log]


long_texts = st.text(alphabet="aé€😀", min_size=40, max_size=150).map(str.encode)


@settings(max_examples=200, deadline=None)
@given(logs(long_texts), cuts, sizes)
def test_a_long_line_is_split_the_same_way_for_all_chunk_sizes(log, cuts, sizes):
    at_once = LogCursor(MAX_BYTES)
    expected = feed(at_once, body(log, at_once.start_stream()), [100_000])
    cursor, lines = LogCursor(MAX_BYTES), []
    for cut in cuts:
        lines += feed(cursor, body(log, cursor.start_stream(strict=bool(cursor.position)))[:cut], sizes)
    lines += feed(cursor, body(log, cursor.start_stream(strict=bool(cursor.position))), sizes)

    assert lines == expected
    assert "".join(lines) == "".join(text(line) for _, line in log)
    assert max((len(line.encode()) for line in lines), default=0) <= MAX_BYTES


@settings(max_examples=200, deadline=None)
@given(logs(st.text(alphabet="abc", max_size=250).map(str.encode)), cuts, sizes)
def test_no_byte_is_lost_or_repeated_after_a_flushed_partial_line(log, cuts, sizes):
    cursor, lines = LogCursor(MAX_BYTES), []
    for cut in cuts:
        lines += feed(cursor, body(log, cursor.start_stream(strict=bool(cursor.position)))[:cut], sizes)
        lines += cursor.flush()
    lines += feed(cursor, body(log, cursor.start_stream(strict=bool(cursor.position))), sizes)

    assert "".join(lines) == "".join(text(line) for _, line in log)


def test_timestamps_may_have_fewer_digits_and_another_time_zone():
    cursor = LogCursor()
    assert cursor.start_stream() is None
    lines = cursor.feed(b"2024-01-01T01:00:07Z a\n2024-01-01T02:00:07.5+01:00 b\n2023-12-31T20:00:07.50-05:00 c\n")
    assert lines == ["a", "b", "c"]
    assert cursor.start_stream() == "2024-01-01T01:00:02Z"
    assert cursor.feed(b"2024-01-01T01:00:07.5Z b\n2024-01-01T02:00:07.5+01:00 c\n2024-01-01T01:00:07.500Z d\n") == [
        "d"
    ]


def test_after_a_rotation_only_a_strict_stream_raises_cursor_lost():
    first, rest = [(START * SECOND, b"a")], [(START * SECOND + 1, b"b"), (START * SECOND + 2, b"c")]
    cursor = LogCursor()
    cursor.start_stream()
    cursor.feed(body(first))
    cursor.start_stream(strict=True)
    with pytest.raises(CursorLostError):
        cursor.feed(body(rest))
    cursor.start_stream()
    assert cursor.feed(body(rest)) == ["b", "c"]


def test_a_strict_stream_before_the_first_line_was_returned_must_be_empty():
    cursor = LogCursor()
    cursor.start_stream(strict=True)
    assert cursor.feed(b"") == []
    with pytest.raises(CursorLostError):
        cursor.feed(body([(START * SECOND, b"a")]))


def test_a_server_message_instead_of_lines_is_skipped_and_logged(caplog):
    cursor = LogCursor()
    cursor.start_stream()
    lines = cursor.feed(body([(START * SECOND, b"a")]) + b"failed to create fsnotify watcher: too many open files\n")
    assert lines == ["a"]
    assert "too many open files" in caplog.text


def test_the_rest_of_a_line_before_since_time_is_skipped(caplog):
    log = [(START * SECOND, b"a")]
    cursor = LogCursor()
    cursor.start_stream()
    cursor.feed(body(log))
    cursor.start_stream(strict=True)
    assert cursor.feed(b"the rest of a long line\n" + body([*log, (START * SECOND, b"b")])) == ["b"]
    assert caplog.text == ""
