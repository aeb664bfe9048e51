"""Lines of several processes of a node in one log."""

from __future__ import annotations

import io

import pytest
from clock import Clock
from hypothesis import given, settings, strategies as st

from trainer_core.node.rank_lines import OpenLines, RankLines


@pytest.fixture
def log():
    return io.StringIO()


def test_a_bar_of_one_rank_does_not_share_a_line_with_another_rank(log):
    bar, other = RankLines(log, 1), RankLines(log, 0)
    bar.write("\r 10%|#         |")
    print("epoch 1", file=other)
    bar.write("\r100%|##########|")
    bar.write("\n")
    assert log.getvalue() == "[rank 0] epoch 1\n[rank 1] 100%|##########|\n"


def test_a_long_bar_has_a_line_every_ten_seconds(log):
    clock = Clock()
    bar = RankLines(log, 1, clock.monotonic)
    for percent in range(30):
        bar.write(f"\r{percent:3d}%")
        clock.sleep(1)
    assert log.getvalue() == "[rank 1]   9%\n[rank 1]  19%\n[rank 1]  29%\n"


@settings(max_examples=200)
@given(
    writes=st.lists(
        st.tuples(st.sampled_from(["\r 5%", ".", "loss", "\n", "a\nb", "a\n", ""]), st.integers(0, 15)), max_size=12
    ),
    has_rank=st.booleans(),
)
def test_what_was_written_is_seen_after_ten_seconds_and_a_line_that_is_younger_stays_whole(writes, has_rank):
    log, clock = io.StringIO(), Clock()
    stream = RankLines(log, 1, clock.monotonic) if has_rank else OpenLines(log, clock.monotonic)
    # The model: the text of the open line, its age, and what was shown.
    model, line, age = [], "", 0
    for text, seconds in writes:
        stream.write(text)
        *ended, rest = (line + text).split("\n")
        model += ended
        age = 0 if ended or not line else age
        line = rest
        for passed in range(seconds + 1):
            if line and age >= 9:
                model.append(line)
                line, age = "", 0
            stream.show()
            clock.sleep(passed < seconds)
            age += passed < seconds
    shown = [each.removeprefix("[rank 1] ") for each in log.getvalue().split("\n")]
    states = [each.rpartition("\r")[2] for each in shown[:-1]]

    assert states == [each.rpartition("\r")[2] for each in model]


def test_one_process_alone_writes_at_once(log):
    stream = OpenLines(log)
    assert stream.write("\r 5%") == 4
    assert log.getvalue() == "\r 5%"


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (["a", "b\nc"], "[rank 3] ab\n[rank 3] c\n"),
        (["one\n\ntwo\n"], "[rank 3] one\n[rank 3] \n[rank 3] two\n"),
        (["windows\r\n"], "[rank 3] windows\n"),
        (["50%\r", "51%\r", "done"], "[rank 3] done\n"),
        (["\r 50%", "\r     \r"], ""),
        (["größer 🚀"], "[rank 3] größer 🚀\n"),
        ([""], ""),
    ],
)
def test_each_line_has_its_rank_and_the_last_one_is_written_at_the_end(log, parts, shown):
    stream = RankLines(log, 3)
    stream.writelines(parts[:1])
    for part in parts[1:]:
        stream.write(part)
    stream.end_line()
    stream.end_line()
    assert log.getvalue() == shown


def test_a_line_without_an_end_is_written_in_parts(log):
    stream = RankLines(log, 0)
    for _ in range(100):
        stream.write("x" * 1000)
    assert len(log.getvalue()) > 60_000
    stream.end_line()
    assert log.getvalue().count("x") == 100_000


def test_what_others_ask_of_a_stream_is_answered_by_the_stream(log):
    assert (RankLines(log, 0).isatty(), RankLines(log, 0).encoding) == (False, log.encoding)
