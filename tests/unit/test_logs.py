"""Log lines: merged streams and chunks with cursors."""

from __future__ import annotations

import threading

import pytest

from trainer_core.base.errors import InvalidRequestError
from trainer_core.model.logs import find_last_progress, merge_streams, parse_timed_progress, select_steps, tail_steps
from trainer_core.model.readable_log import ReadableLog, format_log_lines


@pytest.fixture
def readers():
    """The threads that read lines for this test."""
    before = set(threading.enumerate())
    return lambda: [t for t in threading.enumerate() if t.name.startswith("lines of ") and t not in before]


def end_of(threads):
    for thread in threads:
        thread.join(timeout=300)
    return [thread for thread in threads if thread.is_alive()]


def test_each_line_has_its_stream_and_streams_keep_their_order(readers):
    sources = {name: iter([f"{name} {number}" for number in range(5000)]) for name in ("a", "b", "c")}
    found = list(merge_streams(sources))
    assert [line for name, line in found if name == "b"] == [f"b {number}" for number in range(5000)]
    assert {line.split()[0] == name for name, line in found} == {True}
    assert len(found) == 15_000
    assert readers() == []


def test_no_streams_give_no_lines():
    assert list(merge_streams({})) == []


def test_a_stream_without_lines_does_not_block_another():
    go_on = threading.Event()

    def silent():
        go_on.wait(300)
        yield "late"

    lines = merge_streams({"silent": silent(), "loud": iter(["early"])})
    assert next(lines) == ("loud", "early")
    go_on.set()
    assert list(lines) == [("silent", "late")]


def test_the_error_of_a_stream_is_raised():
    def broken():
        yield "a"
        raise ValueError("broken")

    lines = merge_streams({"broken": broken()})
    assert next(lines) == ("broken", "a")
    with pytest.raises(ValueError, match="broken"):
        next(lines)


def test_closing_early_leaves_no_thread(readers):
    closed = threading.Semaphore(0)

    def endless():
        try:
            while True:
                yield "line"
        finally:
            closed.release()

    lines = merge_streams({str(number): endless() for number in range(8)})
    next(lines)
    threads = readers()
    lines.close()
    assert end_of(threads) == []
    assert all(closed.acquire(timeout=300) for _ in range(8))


#: What torchrun 2.x prints below the traceback of a rank that failed.
TORCHRUN = """\
W1124 02:53:52.386000 28796 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 29006 closing signal
E1124 02:53:52.390000 28796 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "{first}
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
bootstrap.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 29007)
============================================================
the next run""".splitlines()
FRAMES = [
    '<frozen runpy>", line 198, in _run_module_as_main',
    '/opt/venv/bin/torchrun", line 8, in <module>',
    '/usr/lib/python3/site-packages/torch/distributed/run.py", line 1032, in <module>',
]
OWN = ["Traceback (most recent call last):", '  File "train.py", line 4, in train', "ValueError: no luck"]


def readable(lines):
    log = ReadableLog()
    return [text for line in lines for text in log.format("node-0", line, 0.0)]


@pytest.mark.parametrize("first", FRAMES)
def test_a_readable_log_ends_with_the_traceback_of_the_training_and_not_with_that_of_torchrun(first):
    printed = [line.format(first=first) for line in TORCHRUN]
    assert readable([*OWN, *printed, *OWN]) == [*OWN, printed[0], "the next run", *OWN]


def test_a_traceback_of_another_rank_after_the_beginning_of_torchruns_report_is_shown():
    printed = [line.format(first=FRAMES[0]) for line in TORCHRUN]
    assert readable([*printed[:2], *OWN, *printed[2:]]) == [printed[0], *OWN, "the next run"]


def test_a_report_of_torchrun_without_an_end_hides_no_more_than_its_length():
    printed = [line.format(first=FRAMES[0]) for line in TORCHRUN[:6]]
    shown = readable([*printed, *(f"line {number}" for number in range(400))])
    assert shown[-1] == "line 399"
    assert len(shown) > 100


def test_lines_for_programs_are_text_or_left_out():
    lines = [
        "begin",
        '[rank 0] [trainjob:progress] {"step": 5, "total": 10, "metrics": {"loss": 0.5}}',
        '[trainjob:progress] {"checkpoint": 5}',
        '[trainjob:resources] {"t": 1, "cpu": 2, "memory": 3, "memory_limit": 4, "gpus": []}',
        "[trainjob:progress] damaged",
    ]
    assert list(format_log_lines(lines)) == ["begin", "progress 50% (5/10) loss=0.5", "[trainjob:progress] damaged"]


def test_a_readable_log_has_progress_now_and_then_and_no_use_of_resources():
    reports = [f'[trainjob:progress] {{"step": {step}, "total": 100}}' for step in range(1, 101)]
    use = '[trainjob:resources] {"t": 5, "cpu": 71.5, "memory": 4, "memory_limit": 10, "gpus": []}'
    shown = readable(["begin", *reports, use, "end"])
    assert (*shown[:2], *shown[-2:]) == ("begin", "progress 1% (1/100)", "progress 100% (100/100)", "end")
    assert len(shown) == 13


def test_steps_share_the_limit_of_a_chunk_and_keep_their_cursors():
    asked = []

    def read_step(step, cursor, limit):
        asked.append((step, cursor, limit))
        return [f"{step} line"] * 2, f"{step} end", step != "node-0"

    chunk = tail_steps(["node-0", "node-1"], {"node-1": "begin", "gone": "kept"}, 5, read_step)
    assert asked == [("node-0", None, 5), ("node-1", "begin", 3)]
    assert chunk.lines == [("node-0", "node-0 line")] * 2 + [("node-1", "node-1 line")] * 2
    assert chunk.cursor == {"node-0": "node-0 end", "node-1": "node-1 end", "gone": "kept"}
    assert not chunk.complete
    assert tail_steps(["node-1"], {}, 5, read_step).complete


def test_a_step_that_a_job_does_not_have_is_refused_with_those_it_has():
    assert select_steps("train", ["node-0", "node-1"], None) == ["node-0", "node-1"]
    assert select_steps("train", ["node-0", "node-1"], "node-1") == ["node-1"]
    with pytest.raises(InvalidRequestError, match=r"no step 'node-2'; its steps are node-0, node-1"):
        select_steps("train", ["node-0", "node-1"], "node-2")


@pytest.mark.parametrize(
    ("text", "time"), [("0", None), ("1", 1), ("9999999999999", 10**13 - 1), ("10000000000000", None), ("1.5", None)]
)
def test_a_time_of_a_line_is_a_whole_number_of_milliseconds_until_2286(text, time):
    assert parse_timed_progress(f'[trainjob:progress] {{"step": 2, "t": {text}}}') == ({"step": 2}, time)


@pytest.mark.parametrize(
    ("silent", "text"),
    [
        ("[1320, 1800.0]", "silent for 22 of 30 min"),
        ("[45.4, 60]", "silent for 45 of 60 s"),
        ("[]", ""),
        ("[1, NaN]", ""),
        ('["1", "2"]', ""),
        ("{}", ""),
        ("null", ""),
    ],
)
def test_a_report_says_for_how_long_the_training_was_silent(silent, text):
    assert str(find_last_progress([f'[trainjob:progress] {{"silent": {silent}}}'])) == text


def test_the_progress_of_a_log_is_that_of_its_first_line_that_has_one():
    lines = [
        "Epoch 3",
        '[trainjob:progress] {"step": true, "total": 9, "checkpoint": 4.0}',
        '[trainjob:progress] {"step": 1}',
    ]
    progress = find_last_progress(lines)
    assert (progress.step, progress.total, progress.checkpoint, progress.resumed_from) == (None, 9, 4, None)
    assert find_last_progress(["Epoch 3"]) is None
