"""Reading a log on from a place, with an engine that tells the time of a line to the second."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.backends.container.logs import Place, near_the_end, read_on

OUT, ERR = 1, 2


def frame(second: int, piece: str, output: int = OUT) -> tuple[int, bytes]:
    return output, f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z {piece}".encode()


def as_podman(lines):
    """Each line, and its end, in pieces of their own."""
    return [frame(second, piece) for second, line in lines for piece in (line, "\n")]


def as_docker(lines):
    return [frame(second, f"{line}\n") for second, line in lines]


def followed(frames, most, whole=True):
    """Read everything with a new place each time, as other processes would."""
    lines, place = [], Place()
    while True:
        read = read_on(frames, place, whole, most)
        lines += read.lines
        place = Place.of(json.loads(json.dumps(read.place.to_dict())))
        if read.complete:
            return lines, place


LINES = [(0, "a"), (0, "b"), (0, "b"), (9, "c"), (9, ""), (30, "d"), (31, "d"), (61, "e")]


@pytest.mark.parametrize("written", [as_podman, as_docker])
@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_every_line_comes_once_however_many_are_read_at_a_time(written, most):
    assert followed(written(LINES), most)[0] == [line for _, line in LINES]


def test_a_place_is_late_so_that_little_is_read_again():
    _, place = followed(as_podman(LINES), 100)
    base = Place().since
    assert place.since - base > 0
    assert place.pieces == 2


def test_a_place_near_the_end_has_as_many_lines_behind_it_as_are_wanted():
    place = near_the_end(as_docker(LINES)[-3:], 3)
    later = [each for each in as_podman(LINES) if each[1] >= frame(30, "")[1]]
    assert read_on(later, place, whole=True, most=100).lines == ["d", "d", "e"]


def test_of_a_log_with_fewer_lines_than_wanted_all_is_read():
    # As Podman tells of one line that was written in two pieces: all but its end is lost.
    assert near_the_end([frame(30, "\n")], 50) == Place()


def test_lines_of_the_same_second_that_come_later_are_not_lost():
    first = as_podman([(5, "a"), (5, "b")])
    read = read_on(first, Place(), whole=False, most=100)
    again = read_on([*first, *as_podman([(5, "c"), (5, "b")])], read.place, whole=False, most=100)
    assert (read.lines, again.lines) == (["a", "b"], ["c", "b"])


def test_a_line_that_is_not_over_is_kept_for_later():
    begun = [frame(0, "half")]
    read = read_on(begun, Place(), whole=False, most=100)
    # Its other half comes a minute later.
    again = read_on([*begun, frame(60, " a line"), frame(60, "\n")], read.place, whole=False, most=100)
    assert (read.lines, again.lines) == ([], ["half a line"])


def test_a_last_line_without_an_end_counts_when_nothing_can_follow():
    assert read_on([frame(0, "the end")], Place(), whole=True, most=100).lines == ["the end"]


def test_a_line_in_many_pieces_is_one_line():
    assert read_on([frame(0, "x" * 8000), frame(0, "y" * 8000), frame(0, "\n")], Place(), True, 9).lines == [
        "x" * 8000 + "y" * 8000
    ]


def test_a_line_without_end_comes_in_pieces_none_of_them_twice():
    endless = [frame(second, "x" * 40_000) for second in range(4)]
    read = read_on(endless, Place(), whole=False, most=100)
    again = read_on([*endless, frame(9, "\n")], read.place, whole=False, most=100)
    assert [len(line) for line in (*read.lines, *again.lines)] == [80_000, 80_000, 0]


def test_a_progress_bar_keeps_its_last_state_and_no_carriage_return():
    assert read_on([frame(0, "10%\r100%\r\n")], Place(), True, 9).lines == ["10%\r100%"]


def test_a_line_of_the_other_output_does_not_become_part_of_one_that_is_not_over():
    frames = [frame(0, "10%"), frame(0, "a", ERR), frame(0, "\n", ERR), frame(1, "20%"), frame(1, "\n")]
    assert followed(frames, 100)[0] == ["10%", "a", "20%"]
    assert followed(frames, 1)[0] == ["10%", "a", "20%"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=5))
    ),
    st.lists(st.integers(1, 5), min_size=1),
)
def test_no_line_is_lost_or_repeated_wherever_reading_stops(gaps, steps):
    second, lines = 0, []
    for gap, text in gaps:
        second += gap * 4
        lines.append((second, text))
    written = [piece for line in lines for piece in as_podman([line])]
    found, place = [], Place()
    for count in range(len(written) + 1):
        most = steps[count % len(steps)]
        read = read_on(written[:count], place, whole=False, most=most)
        found, place = found + read.lines, read.place
    while not (read := read_on(written, place, whole=True, most=7)).complete or read.lines:
        found, place = found + read.lines, read.place
    assert found == [text for _, text in lines]
