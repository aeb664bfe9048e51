"""Progress lines: one a while, from rank 0, and never the reason that a training fails."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from io import StringIO

import pytest
from clock import Clock
from hypothesis import given, settings, strategies as st
from node_process import BARE, Node

from trainer_core.model.logs import build_progress, find_last_progress, parse_progress, parse_timed_progress
from trainer_core.node import progress as progress_module
from trainer_core.node.progress import INTERVAL, PREFIX, Reporter, progress
from trainer_core.packaging import serializer

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture(autouse=True)
def in_job(monkeypatch):
    monkeypatch.setenv("TRAINJOB_PAYLOAD", "payload.json")


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def reporter(clock):
    return Reporter(clock=clock)


@pytest.fixture
def lines(capsys):
    """What was printed since the last look, parsed."""
    return lambda: [parse_progress(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_is_readable_and_parses(reporter, capsys):
    reporter.report(3, 10, {"loss": 0.3})

    line = capsys.readouterr().out
    assert line.startswith('[trainjob:progress] {"step": 3, "total": 10, "metrics": {"loss": 0.3}, "t": ')
    assert line.endswith("}\n")


def test_a_line_has_the_time_of_its_report_in_milliseconds(reporter, capsys):
    before = time.time()
    reporter.report(3)

    assert before - 0.001 <= parse_timed_progress(capsys.readouterr().out)[1] / 1000 <= time.time()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"t": "x"}', '{"t": -1}', '{"t": 1e300}', '{"t": null}', "[" * 9999]
)
def test_a_line_without_a_time_has_none(text):
    assert parse_timed_progress(PREFIX + text)[1] is None


@given(
    said=st.fixed_dictionaries(
        {},
        optional={
            "step": numbers,
            "total": numbers,
            "metrics": st.dictionaries(st.text(), numbers, min_size=1, max_size=4),
        },
    )
)
def test_what_was_said_is_read_back(said):
    printed = []

    class Stdout:
        def write(self, text):
            printed.append(text)

        def flush(self):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Stdout())
        Reporter().report(**said)

    assert [parse_progress(line) for line in printed] == [said] * bool(said)


def test_calls_in_quick_succession_make_one_line(reporter, lines):
    for step in range(100):
        reporter.report(step, 1000)

    assert lines() == [{"step": 0, "total": 1000}]


def test_after_the_interval_comes_the_next_line(reporter, clock, lines):
    reporter.report(1, 9)
    clock.now += INTERVAL
    reporter.report(2, 9)

    assert lines() == [{"step": 1, "total": 9}, {"step": 2, "total": 9}]


def test_the_last_step_always_gets_its_line(reporter, lines):
    for step in range(1, 11):
        reporter.report(step, 10)

    assert lines() == [{"step": 1, "total": 10}, {"step": 10, "total": 10}]


def test_metrics_given_between_two_lines_are_in_the_next(reporter, clock, lines):
    reporter.report(1, 9)
    reporter.report(metrics={"accuracy": 0.9, "loss": 1})
    reporter.report(2, metrics={"loss": 0.5})
    clock.now += INTERVAL
    reporter.report(3)

    assert lines()[1:] == [{"step": 3, "metrics": {"accuracy": 0.9, "loss": 0.5}}]


def test_what_no_line_has_shown_is_printed_at_the_end(reporter, lines):
    reporter.report(1)
    reporter.report(2)
    reporter.flush()
    reporter.flush()

    assert lines() == [{"step": 1}, {"step": 2}]


def test_the_last_value_of_a_tensor_or_numpy_number_counts_however_quick_the_reports_are(reporter, clock, lines):
    torch, np = pytest.importorskip("torch"), pytest.importorskip("numpy")
    loss, array = torch.tensor(0.5, requires_grad=True), np.array(2.0)
    reporter.report(1, metrics={"loss": loss})
    reporter.report(2, metrics={"loss": loss / 2, "rate": np.float32(0.125), "norm": array, "huge": torch.zeros(9)})
    kept = reporter._pending["metrics"]["loss"]
    array += 1
    clock.now += INTERVAL
    reporter.report(3)

    assert kept.grad_fn is None
    assert lines() == [
        {"step": 1, "metrics": {"loss": 0.5}},
        {"step": 3, "metrics": {"loss": 0.25, "rate": 0.125, "norm": 2.0}},
    ]


def test_a_tensor_that_changes_after_its_report_is_reported_as_it_was(reporter, clock, lines):
    torch = pytest.importorskip("torch")
    total = torch.tensor(4.0)
    reporter.report(1)
    reporter.report(2, metrics={"total": total})
    total.zero_()
    reporter.flush()

    assert lines()[1:] == [{"step": 2, "metrics": {"total": 4.0}}]


names = st.sampled_from(["loss", "val_loss", "accuracy", "half \udcff"])
values = st.sampled_from([0.5, 1, 0.25, float("nan"), float("inf"), None, "nan", 10**400])


@settings(derandomize=True, max_examples=150)
@given(reports=st.lists(st.tuples(st.dictionaries(names, values, max_size=3), st.booleans()), min_size=1, max_size=8))
def test_the_last_line_has_the_last_value_that_was_reported_under_each_name(reports):
    clock, model = Clock(100.0), {}
    with redirect_stdout(StringIO()) as printed:
        reporter = Reporter(clock=clock)
        for step, (metrics, is_later) in enumerate(reports):
            model |= {name.replace("\udcff", "?"): value for name, value in metrics.items()}
            reporter.report(step, metrics=metrics)
            clock.now += INTERVAL * is_later
        reporter.flush()
    last = find_last_progress(reversed(printed.getvalue().splitlines()))

    assert last.metrics == {name: value for name, value in model.items() if value in (0.5, 1, 0.25)}


def test_a_line_that_only_notes_a_checkpoint_has_no_value_that_was_replaced(reporter, clock, lines, capsys):
    for metrics in ({"loss": 0.5}, {"rate": 0.1}, {"loss": float("nan"), "rate": 0.2}):
        clock.now += INTERVAL
        reporter.report(metrics=metrics)
    capsys.readouterr()
    reporter.notes["checkpoint"] = 3
    reporter.flush()

    assert find_last_progress(capsys.readouterr().out.splitlines()).metrics == {"rate": 0.2}


def test_names_without_end_do_not_make_lines_without_end(reporter, clock, capsys):
    for number in range(1000):
        clock.now += INTERVAL
        reporter.report(number, metrics={f"loss at {number}": number})

    assert len(capsys.readouterr().out.splitlines()[-1]) < 8000


def test_a_number_that_is_not_finite_is_printed_as_null_and_read_as_missing(reporter, capsys):
    reporter.report(1, metrics={"loss": float("nan"), "norm": float("inf"), "ok": True})
    line = capsys.readouterr().out

    assert '"metrics": {"loss": null, "norm": null, "ok": 1}' in line
    assert parse_progress(line) == {"step": 1, "metrics": {"ok": 1.0}}


def test_other_ranks_say_nothing(reporter, monkeypatch, lines):
    monkeypatch.setenv("RANK", "1")
    reporter.report(1, 1)
    reporter.flush()

    assert lines() == []


@pytest.mark.parametrize("said", [("x",), (object(), 3), (1, 1, "metrics"), (1, 1, {"a": object()}), (1, 1, [1, 2])])
def test_odd_values_raise_nothing(said, capsys):
    progress(*said)
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_closed_stdout_raises_nothing(tmp_path):
    serializer.ship(tmp_path / "shipped")

    def train():
        import os
        import sys

        from trainer_core import progress

        sys.stdout.close()
        progress(1, 3)
        sys.stdout = None
        progress(3, 3)
        reading, writing = os.pipe()
        os.close(reading)
        sys.stdout = os.fdopen(writing, "w")
        progress(3, 3)
        sys.stdout = None
        return "survived"

    assert Node(tmp_path, tmp_path / "shipped").run(serializer.package(train), BARE).result == "survived"


def test_a_process_that_ends_prints_what_is_left(tmp_path):
    serializer.ship(tmp_path / "shipped")

    def train():
        from trainer_core import progress

        progress(1)
        progress(2, metrics={"accuracy": 0.9})

    ended = Node(tmp_path, tmp_path / "shipped").run(serializer.package(train), BARE)

    lines = [parse_progress(line) for line in ended.stdout.splitlines()]

    assert lines == [{"step": 1}, {"step": 2, "metrics": {"accuracy": 0.9}}]


def test_the_public_function_prints_to_stdout(lines):
    progress_module.flush()
    lines()
    progress(5, 5)

    assert lines() == [{"step": 5, "total": 5}]


@pytest.mark.parametrize("before", ["", "[default0]:", "epoch 1 ... ", "2026-01-01T00:00:00Z stdout F "])
def test_a_line_is_found_behind_what_a_launcher_puts_before_it(before):
    assert parse_progress(f'{before}{PREFIX}{{"step": 1}}\r\n') == {"step": 1}


@pytest.mark.parametrize(
    "line",
    ["", "loss 0.3", PREFIX, f"{PREFIX}{{", f"{PREFIX}[1]", f"{PREFIX}3", f"{PREFIX}{'[' * 100_000}", '{"step": 1}'],
)
def test_any_other_line_is_no_progress(line):
    assert parse_progress(line) is None


@pytest.mark.parametrize(
    "text",
    ['{"step": "1", "total": null}', '{"step": true, "metrics": 3}', '{"step": 1e999, "metrics": {"a": "x"}}'],
)
def test_values_that_are_no_numbers_are_left_out(text):
    assert parse_progress(PREFIX + text) in ({}, {"metrics": {}})


def test_the_steps_of_checkpoints_are_whole_numbers():
    steps = parse_progress(f'{PREFIX}{{"checkpoint": 9, "resumed_from": 4.0}}')

    assert steps == {"checkpoint": 9, "resumed_from": 4}
    assert [type(step) for step in steps.values()] == [int, int]


def test_a_large_step_is_shown_whole():
    assert str(build_progress({"step": 1_234_567, "total": 10_000_000})) == "12% (1234567/10000000)"


@given(st.text())
def test_no_line_makes_the_reader_fail(text):
    assert parse_progress(PREFIX + text) is None or isinstance(parse_progress(PREFIX + text), dict)
