"""The answer of a job: what the function returned and reported, through the record and the log that a node writes."""

from __future__ import annotations

import datetime
import decimal
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from clock import Clock
from hypothesis import example, given, settings, strategies as st

from trainer_core import CustomTrainer, DebugBackendConfig, TrainerClient
from trainer_core.model.jobs import TrainJobRef, build_complete_outcome
from trainer_core.model.logs import find_last_progress
from trainer_core.node.progress import Reporter
from trainer_core.node.termination import encode_result, parse_record, result_record
from trainer_core.testing.recorder import RecordedJob, completes

REF = TrainJobRef("local", "/home", "job", "uid")
LOST = object()
NUMBERS = [0.5, 3, -2, np.float32(0.25), np.int64(7), decimal.Decimal("0.125"), 10**300]
#: A value that a function may return beside a number, and its JSON form.
ODD = [
    (float("nan"), LOST),
    (float("inf"), LOST),
    (np.float32("nan"), LOST),
    (decimal.Decimal("NaN"), LOST),
    (b"x", LOST),
    (object(), LOST),
    (1j, LOST),
    (None, None),
    ("nan", "nan"),
    ("0.9", "0.9"),
    (True, True),
    ([0.9], [0.9]),
    ({"value": 0.9}, {"value": 0.9}),
    ({2, 1}, [1, 2]),
    (10**400, 10**400),
    (datetime.date(2026, 1, 2), "2026-01-02"),
    (Path("/m"), "/m"),
    (np.datetime64("2026-01-02"), "2026-01-02"),
]
NAMES = st.sampled_from(["accuracy", "loss", "f1"])
VALUES = st.sampled_from([*((number, float(number)) for number in NUMBERS), *ODD])
ENTRIES = st.dictionaries(NAMES, VALUES, max_size=3)
REPORTS = st.lists(st.dictionaries(NAMES, st.sampled_from([0.75, 1.0, float("nan"), None]), max_size=3), max_size=4)


def expected_metrics(reports, top, entry):
    """What is returned last decides; what is not returned has the last value reported under its name."""
    known = {}
    for report in reports:
        known |= {name: value if value in (0.75, 1.0) else None for name, value in report.items()}
    known |= {name: None for name, (value, _) in top.items() if not is_number(value)}
    source = top if entry is None else entry
    known |= {name: float(value) if is_number(value) else None for name, (value, _) in source.items()}
    return {name: value for name, value in known.items() if value is not None}


def is_number(value):
    return any(value is number for number in NUMBERS)


def outcome_of(reports, returned):
    clock = Clock(100.0)
    with redirect_stdout(StringIO()) as log:
        reporter = Reporter(clock=clock)
        for step, metrics in enumerate(reports):
            reporter.report(step, metrics=metrics)
            clock.now += 0.3
        reporter.flush()
    record = parse_record(encode_result(result_record(returned)))
    progress = find_last_progress(reversed(log.getvalue().splitlines()))
    return build_complete_outcome(REF, record, started_at=None, finished_at=None, last_progress=progress)


@settings(derandomize=True, max_examples=300)
@given(reports=REPORTS, top=ENTRIES, entry=st.none() | ENTRIES, size=st.sampled_from([0, 5000]))
@example(reports=[{"accuracy": 0.75}], top={"accuracy": ODD[0]}, entry=None, size=0)
@example(reports=[{"accuracy": 0.75}], top={}, entry={"accuracy": ODD[0]}, size=5000)
@example(reports=[{"accuracy": 0.75}], top={"accuracy": ODD[0]}, entry={"loss": (0.5, 0.5)}, size=5000)
def test_the_outcome_has_what_was_returned_last_and_names_what_is_absent(reports, top, entry, size):
    def build(entries):
        return {name: value for name, (value, _) in entries.items()}

    metrics = {} if entry is None else {"metrics": build(entry)}
    returned = {**build(top), **metrics, "artifacts": {"model": "s3://m"}, "text": "x" * size}
    outcome = outcome_of(reports, returned)

    assert outcome.metrics == expected_metrics(reports, top, entry)
    assert (outcome.artifacts, outcome.result_truncated) == ({"model": "s3://m"}, size > 0)
    places = [("result", top), *([("result.metrics", entry)] if entry else [])]
    lost = [f"{where}.{name}" for where, entries in places for name, (_, form) in entries.items() if form is LOST]
    assert [place for place in lost if place not in (outcome.result_note or "")] == []
    forms = [{name: None if form is LOST else form for name, (_, form) in entries.items()} for _, entries in places]
    assert outcome.result is None or [{**outcome.result, **form} for form in forms[:1]] == [outcome.result]
    assert outcome.result is None or outcome.result.get("metrics", {}) == (forms[1] if entry else {})


@pytest.mark.parametrize("count", [0, 1, 100, 2000])
def test_a_metric_that_did_not_fit_into_the_record_is_not_filled_from_an_earlier_report(count):
    returned = {f"{number}/f1": 0.5 for number in range(count)} | {"accuracy": float("nan"), "text": "x" * 5000}
    outcome = outcome_of([{"accuracy": 0.95, "1999/f1": 0.1, "seconds": 2.0}], returned)

    assert {name: value for name, value in outcome.metrics.items() if returned.get(name, value) != value} == {}
    assert outcome.metrics.keys() <= returned.keys() - {"accuracy"} | {"1999/f1", "seconds"}


@pytest.mark.parametrize("value", [*NUMBERS, *(value for value, _ in ODD)], ids=lambda value: type(value).__name__)
def test_a_recorded_job_completes_as_a_real_one_does(value):
    job = RecordedJob(None, REF, 0, datetime.datetime.now(datetime.timezone.utc), completes())
    recorded = completes({"metrics": {"accuracy": value, "loss": 0.5}})(job)
    real = outcome_of([], {"metrics": {"accuracy": value, "loss": 0.5}})

    assert (recorded.metrics, recorded.result, recorded.result_note) == (real.metrics, real.result, real.result_note)


def train(case: str) -> dict:
    import numpy

    from trainer_core import progress

    progress(1, 2, {"accuracy": 0.95})
    progress(2, 2, {"loss": 0.1})
    odd = {
        "nan": float("nan"),
        "inf": float("-inf"),
        "none": None,
        "text": "nan",
        "list": [0.9],
        "numpy": numpy.float32("nan"),
        "bytes": b"",
    }
    return {"accuracy": odd[case], "text": "x" * 5000 * (case == "inf")}


@pytest.mark.parametrize("case", ["nan", "inf", "none", "text", "list", "numpy", "bytes"])
def test_an_earlier_report_does_not_replace_what_a_job_returned(case):
    client = TrainerClient(DebugBackendConfig())
    outcome = client.wait(client.train(trainer=CustomTrainer(train, {"case": case})))

    assert outcome.metrics == {"loss": 0.1}
    assert "no metric, because the function returned no finite number: accuracy" in outcome.result_note
