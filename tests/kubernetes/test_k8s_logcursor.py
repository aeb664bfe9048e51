"""A log that is sent again and again from about the same place, cut anywhere, is the log."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_core.cluster.logcursor import LogCursor, PlaceLostError

START = 1_700_000_000
SECOND = 10**9
LONGEST = 100


def stamp(nanoseconds: int) -> bytes:
    seconds, rest = divmod(nanoseconds, SECOND)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z".encode()


def body(log: list[tuple[int, bytes]], since: str | None = None) -> bytes:
    """What a kubelet sends; it drops each line that is older than a second."""
    first = datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp() * SECOND if since else 0
    return b"".join(stamp(when) + b" " + line + b"\n" for when, line in log if when >= first)


def feed(cursor: LogCursor, data: bytes, sizes: list[int]) -> list[str]:
    """Feed it in blocks of these sizes, again and again."""
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
# Few different times, so that many are equal; out of order by less than five seconds, as clocks of nodes may jump.
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


@settings(max_examples=400, deadline=None)
@given(logs(), cuts, sizes)
def test_however_often_and_wherever_the_stream_breaks_off_each_line_comes_once(log, cuts, sizes):
    cursor, lines = LogCursor(), []
    for cut in cuts:
        lines += feed(cursor, body(log, cursor.begin(strict=True))[:cut], sizes)
    lines += feed(cursor, body(log, cursor.begin(strict=True)), sizes)

    assert lines + cursor.flush() == [text(line) for _, line in log]


long_texts = st.text(alphabet="aé€😀", min_size=40, max_size=150).map(str.encode)


@settings(max_examples=200, deadline=None)
@given(logs(long_texts), cuts, sizes)
def test_a_long_line_comes_in_the_same_pieces_however_it_was_sent(log, cuts, sizes):
    at_once = LogCursor(LONGEST)
    expected = feed(at_once, body(log, at_once.begin()), [100_000])
    cursor, lines = LogCursor(LONGEST), []
    for cut in cuts:
        lines += feed(cursor, body(log, cursor.begin(strict=True))[:cut], sizes)
    lines += feed(cursor, body(log, cursor.begin(strict=True)), sizes)

    assert lines == expected
    assert "".join(lines) == "".join(text(line) for _, line in log)
    assert max((len(line.encode()) for line in lines), default=0) <= LONGEST


@settings(max_examples=200, deadline=None)
@given(logs(st.text(alphabet="abc", max_size=250).map(str.encode)), cuts, sizes)
def test_no_byte_is_lost_or_repeated_where_a_line_was_given_before_it_had_an_end(log, cuts, sizes):
    cursor, lines = LogCursor(LONGEST), []
    for cut in cuts:
        lines += feed(cursor, body(log, cursor.begin(strict=True))[:cut], sizes)
        lines += cursor.flush()
    lines += feed(cursor, body(log, cursor.begin(strict=True)), sizes)

    assert "".join(lines) == "".join(text(line) for _, line in log)


def test_times_may_have_fewer_digits_and_another_zone():
    cursor = LogCursor()
    assert cursor.begin() is None
    lines = cursor.feed(b"2024-01-01T01:00:07Z a\n2024-01-01T02:00:07.5+01:00 b\n2023-12-31T20:00:07.50-05:00 c\n")
    assert lines == ["a", "b", "c"]
    assert cursor.begin() == "2024-01-01T01:00:02Z"
    assert cursor.feed(b"2024-01-01T01:00:07.5Z b\n2024-01-01T02:00:07.5+01:00 c\n2024-01-01T01:00:07.500Z d\n") == [
        "d"
    ]


def test_after_a_rotation_the_rest_of_the_log_comes_unless_it_must_go_on_from_the_last_line():
    first, rest = [(START * SECOND, b"a")], [(START * SECOND + 1, b"b"), (START * SECOND + 2, b"c")]
    cursor = LogCursor()
    cursor.begin()
    cursor.feed(body(first))
    cursor.begin(strict=True)
    with pytest.raises(PlaceLostError):
        cursor.feed(body(rest))
    cursor.begin()
    assert cursor.feed(body(rest)) == ["b", "c"]


def test_what_a_server_says_instead_of_lines_is_no_line_and_is_logged(caplog):
    cursor = LogCursor()
    cursor.begin()
    lines = cursor.feed(body([(START * SECOND, b"a")]) + b"failed to create fsnotify watcher: too many open files\n")
    assert lines == ["a"]
    assert "too many open files" in caplog.text


def test_the_rest_of_a_line_that_began_before_the_time_asked_for_is_no_line(caplog):
    log = [(START * SECOND, b"a")]
    cursor = LogCursor()
    cursor.begin()
    cursor.feed(body(log))
    cursor.begin(strict=True)
    assert cursor.feed(b"the rest of a long line\n" + body([*log, (START * SECOND, b"b")])) == ["b"]
    assert caplog.text == ""
