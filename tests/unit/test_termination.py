"""What a node reports: any result becomes a record that fits, and reporting never fails a training."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import stat
import sys
from enum import Enum, IntEnum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trainer_core.node import env
from trainer_core.node.artifact_stamps import find_change
from trainer_core.node.termination import (
    encode_error,
    encode_result,
    error_record,
    parse_record,
    report_error,
    report_result,
    report_values,
    result_record,
)


class Level(IntEnum):
    HIGH = 3


class Kind(str, Enum):
    FAST = "f"


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "termination.json"
    monkeypatch.setenv(env.TERMINATION_LOG, str(path))
    return path


def error_of(message="boom", depth=0):
    """An exception that was raised and caught, from so many frames down."""

    def raise_it(left):
        raise_it(left - 1) if left else fail()

    def fail():
        raise ValueError(message)

    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the message is the test's input
        raise_it(depth)
    return caught.value


@pytest.fixture
def torch():
    """Imported by the tests that need it: that takes seconds of each pytest worker."""
    return pytest.importorskip("torch")


# ---- results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({"accuracy": 0.97, "epochs": 3, "ok": True, "by": ["a", None]}, None),
        ((1, 2), [1, 2]),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ({"path": Path("/out/model.pt")}, {"path": "/out/model.pt"}),
        ({1: "a", Kind.FAST: Level.HIGH}, {"1": "a", "f": 3}),
        ({"text": "half \ud800"}, {"text": "half ?"}),
    ],
    ids=repr,
)
def test_a_result_becomes_plain_json(value, expected):
    assert result_record(value) == {"result": value if expected is None else expected}
    assert parse_record(encode_result(result_record(value))) == {"result": value if expected is None else expected}


def test_a_tensor_becomes_a_number_or_a_list(torch):
    small = torch.tensor(0.5, requires_grad=True), torch.tensor([1, 2]), torch.tensor(0.5, dtype=torch.bfloat16)
    assert [result_record(value) for value in small] == [{"result": 0.5}, {"result": [1, 2]}, {"result": 0.5}]


@dataclasses.dataclass
class Report:
    accuracy: float
    labels: frozenset[str]
    model: object = None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc), "2026-01-02T03:04:05+00:00"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.time(3, 4), "03:04:00"),
        (decimal.Decimal("0.91"), 0.91),
        (fractions.Fraction(1, 4), 0.25),
        (np.longdouble(0.5), 0.5),
        (np.datetime64("2026-01-02T03:04:05.123456789"), "2026-01-02T03:04:05.123456789"),
        (np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[D]"), ["2026-01-01", "2026-01-02"]),
        (enum.Enum("Color", {"RED": (1, 2)}).RED, [1, 2]),
        ({10, 9, 100}, [9, 10, 100]),
        (frozenset({"b", 1, None, ("a",)}), ["b", 1, ["a"], None]),
        ({float("-0.5"), 3}, [-0.5, 3]),
        (Report(0.9, frozenset({"b", "a"})), {"accuracy": 0.9, "labels": ["a", "b"], "model": None}),
        (
            {("cat", 1): 2, datetime.date(2026, 1, 2): 3, None: 4, True: 5},
            {'["cat", 1]': 2, "2026-01-02": 3, "null": 4, "true": 5},
        ),
        ({np.int64(3): 1, 1.5: 2}, {"3": 1, "1.5": 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_an_obvious_json_form_takes_it(value, expected):
    record = result_record({"value": value})

    assert record == {"result": {"value": expected}}


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (b"x", "result.odd (bytes)"),
        (1j, "result.odd (complex)"),
        (np.complex64(1j), "result.odd (complex64)"),
        (object(), "result.odd (object)"),
        (Report, "result.odd (type)"),
        (datetime.timedelta(1), "result.odd (timedelta)"),
        (np.timedelta64(1, "ns"), "result.odd (timedelta64)"),
        ([0, {"deep": lambda: 0}], "result.odd[1].deep (function)"),
        (Report(0.9, frozenset(), b""), "result.odd.model (bytes)"),
        (10**5000, "result.odd (int: ValueError: Exceeds the limit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_other_value_is_null_by_name_and_costs_nothing_else(value, note):
    record = result_record({"accuracy": 0.9, "odd": value, "artifacts": {"model": "s3://m"}})

    assert (record["result"]["accuracy"], record["result"]["artifacts"]) == (0.9, {"model": "s3://m"})
    assert record["note"].startswith(f"null instead of a value that is not JSON: {note}")
    assert record["result"]["odd"] != value
    assert parse_record(encode_result(record)) == record


def test_a_module_and_a_large_tensor_beside_a_metric_are_null_by_name(torch):
    record = result_record({"accuracy": 0.9, "model": torch.nn.Linear(1, 1), "weights": torch.zeros(200, 200)})

    assert record["result"] == {"accuracy": 0.9, "model": None, "weights": None}
    assert "result.model (Linear), result.weights (Tensor: more than 10000 values" in record["note"]


def test_a_value_that_is_not_json_is_a_result_of_none_with_a_note():
    assert result_record(object()) == {
        "result": None,
        "note": "the function returned object, which is not JSON: return numbers, strings, lists and dicts",
    }


@pytest.mark.parametrize(
    "keys", [(object(), "a"), (1, "1"), ("half \ud800", "half ?")], ids=("object", "number", "text")
)
def test_an_entry_whose_key_is_not_json_or_there_twice_is_left_out_by_name(keys):
    record = result_record({"accuracy": 0.9, "by": dict.fromkeys(keys, 1)})

    assert (record["result"]["accuracy"], len(record["result"]["by"])) == (0.9, 1)
    assert record["note"].startswith("left out, because the key is not JSON or there twice: ")


def test_a_value_that_fails_while_it_is_read_becomes_a_note():
    class Device:
        shape = ()

        def tolist(self):
            raise RuntimeError("CUDA error:\nan illegal memory access")

    record = result_record({"loss": 0.5, "device": Device()})

    assert record["result"] == {"loss": 0.5, "device": None}
    assert record["note"].endswith("result.device (Device: RuntimeError: CUDA error: an illegal memory access)")


def test_data_that_contains_itself_or_is_too_deep_is_null_where_it_does():
    loop: list[object] = [1]
    loop.append(loop)
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    record = result_record({"loss": 0.5, "loop": loop, "deep": deep})

    assert (record["result"]["loss"], record["result"]["loop"]) == (0.5, [1, None])
    assert "result.loop[1] (list: contains itself)" in record["note"]
    assert parse_record(encode_result(record))["result"] == record["result"]


@pytest.mark.parametrize("value", [None, "nan", "0.9", [0.9], {"value": 0.9}])
def test_what_is_no_number_under_metrics_is_named(value):
    record = result_record({"metrics": {"accuracy": value, "loss": 0.5, "converged": True}})

    assert record["note"] == "no metric, because it is not a finite number: result.metrics.accuracy"


def test_nan_and_infinity_become_null_and_a_note_says_where():
    record = result_record({"loss": float("nan"), "norms": [1.0, float("inf"), np.float32("-inf")]})

    assert record["result"] == {"loss": None, "norms": [1.0, None, None]}
    assert (
        record["note"] == "null instead of a number that is not finite: result.loss, result.norms[1], result.norms[2]"
    )


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_record_of_a_result_is_strict_json_that_fits(value):
    data = encode_result(result_record(value))

    assert len(data) <= env.RECORD_LIMIT
    assert "result" in json.loads(data, parse_constant=pytest.fail)


def test_a_result_of_just_the_limit_travels_whole():
    room = env.RECORD_LIMIT - len('{"result":""}')

    assert parse_record(encode_result(result_record("x" * room))) == {"result": "x" * room}
    cut = parse_record(encode_result(result_record("x" * (room + 1))))
    assert (cut["result"], cut["truncated"], cut["kept"]) == (None, True, {"metrics": {}, "artifacts": {}})
    assert cut["note"] == f"the result has {room + 3} bytes as JSON, more than {env.RECORD_LIMIT}"


@pytest.mark.parametrize("count", [1, 300])
def test_as_many_metrics_of_a_result_that_is_too_large_are_kept_as_fit(count):
    metrics = {f"class-{number}/f1": 0.123456789 for number in range(count)}
    data = encode_result(result_record({"metrics": metrics, "text": "x" * 5000}))
    kept = json.loads(data)["kept"]["metrics"]

    assert len(data) <= env.RECORD_LIMIT
    assert list(kept.items()) == [*metrics.items(), ("text", None)][: len(kept)]
    assert len(kept) >= min(count, 120)
    assert json.loads(data)["kept"].get("incomplete", False) is (len(kept) < count + 1)


def test_of_a_result_and_its_note_the_result_goes_first():
    room = env.RECORD_LIMIT - len('{"result":["",null]}')
    value = ["ü" * (room // 2), float("nan")]

    assert parse_record(encode_result(result_record(value))) == {"result": [value[0], None]}


# ---- errors --------------------------------------------------------------------------------------------------


def test_an_error_names_type_message_and_rank(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    error = error_record(error_of("no data"))["error"]

    assert (error["type"], error["message"], error["rank"]) == ("ValueError", "no data", 3)
    assert error["traceback"].endswith("ValueError: no data")
    assert "restart" not in error


def test_an_error_of_a_library_is_named_with_its_module(torch):
    error = error_record(torch.OutOfMemoryError("CUDA out of memory"))["error"]

    assert error["type"].startswith("torch.")
    assert error["type"].endswith("OutOfMemoryError")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no exception groups")
def test_the_message_of_a_group_of_exceptions_has_the_first_one():
    inner = ExceptionGroup("readers", [ValueError("shard 3 is empty"), OSError()])  # noqa: F821
    error = error_record(ExceptionGroup("unhandled errors in a TaskGroup", [inner]))["error"]  # noqa: F821
    assert error["type"] == "ExceptionGroup"
    assert error["message"] == "unhandled errors in a TaskGroup (1 sub-exception): ValueError: shard 3 is empty"


def test_the_causes_of_an_error_are_in_its_traceback():
    error = error_of("low level")
    error.__cause__ = KeyError("root")

    assert "KeyError: 'root'" in error_record(error)["error"]["traceback"]


@pytest.mark.parametrize(
    "message", ["x" * 100_000, "ü" * 9000, "\x00" * 9000, "\n!" * 9000, '"\\' * 9000, "\ud800" * 9000]
)
def test_a_long_error_is_cut_to_what_fits(message):
    data = encode_error(error_record(error_of(message)))
    error = parse_record(data)["error"]

    assert len(data) <= env.RECORD_LIMIT
    assert len(data) > env.RECORD_LIMIT - 20
    assert "[…]" in error["message"]


def test_of_a_long_traceback_the_end_is_kept():
    record = error_record(error_of("the reason", depth=40))
    record["error"]["traceback"] = "first line\n" + "x" * 9000 + "\n" + record["error"]["traceback"][-500:]
    traceback = parse_record(encode_error(record))["error"]["traceback"]

    assert traceback.startswith("[…] x")
    assert traceback.endswith("ValueError: the reason")


@given(message=st.text(max_size=3000), trace=st.text(max_size=6000), kind=st.text(max_size=2000))
def test_any_record_of_an_error_fits(message, trace, kind):
    record = {"error": {"type": kind, "message": message, "traceback": trace, "rank": 123456}}
    data = encode_error(record)

    assert len(data) <= env.RECORD_LIMIT
    assert parse_record(data)["error"]["rank"] == 123456


def test_a_long_name_of_an_error_leaves_room_for_its_message():
    record = {"error": {"type": "E" * 9000, "message": "the reason", "traceback": "", "rank": 0}}
    data = encode_error(record)
    error = parse_record(data)["error"]

    assert len(data) <= env.RECORD_LIMIT
    assert error["message"] == "the reason"
    assert error["type"].startswith("EEE")


@pytest.mark.parametrize("message", ["short", "x" * 100_000])
def test_the_newest_checkpoint_stays_in_the_record_of_an_error_of_any_length(log, message):
    report_values(log, checkpoint=4, resumed_from=2)
    report_values(log, checkpoint=6)
    error = error_of(message)
    report_error(error)

    record = parse_record(log.read_bytes())
    assert (record["checkpoint"], record["resumed_from"], record["error"]["type"]) == (6, 2, "ValueError")
    assert len(log.read_bytes()) <= env.RECORD_LIMIT


# ---- the log of a node ---------------------------------------------------------------------------------------


def test_a_result_is_written_once_and_for_its_owner_only(log):
    report_result({"accuracy": 0.5})

    assert json.loads(log.read_bytes()) == {"result": {"accuracy": 0.5}}
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert list(log.parent.iterdir()) == [log]


def test_an_error_replaces_a_result_and_no_result_replaces_an_error(log):
    report_result(1)
    report_error(error_of("first"))
    report_error(error_of("second"))
    report_result(2)

    assert parse_record(log.read_bytes())["error"]["message"] == "first"


@pytest.mark.parametrize("found", [b"", b"{", b"[]", b"\xff", b'{"error": "text"}', b'{"result": 1}'])
def test_what_else_lies_in_the_log_is_replaced(log, found):
    log.write_bytes(found)
    report_result(2)

    assert json.loads(log.read_bytes()) == {"result": 2}


def test_a_log_that_cannot_be_replaced_is_overwritten_in_place(tmp_path, monkeypatch):
    path = tmp_path / "mounted"
    path.write_text("x" * 5000)
    with path.open("r+b") as file:
        # Like a file that is mounted by itself: it can be written to, but nothing can be put in its folder.
        monkeypatch.setenv(env.TERMINATION_LOG, f"/dev/fd/{file.fileno()}")
        report_result(3)

    assert path.read_bytes() == b'{"result":3}'


@pytest.mark.parametrize("where", ["missing/termination.json", "."])
def test_a_log_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, capsys, where):
    monkeypatch.setenv(env.TERMINATION_LOG, str(tmp_path / where))
    report_result(3)
    report_error(error_of())

    assert capsys.readouterr().err.count("could not be written to TRAINJOB_TERMINATION_LOG=") == 2
    assert list(tmp_path.iterdir()) == []


def test_other_ranks_report_no_result(log, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    report_result(1)

    assert not log.exists()


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[1]", b"\xff\xfe", b'{"other": 1}', b'{"error": 1, "result": 2}', "[" * 100_000], ids=len
)
def test_what_is_no_record_reads_as_none(text):
    assert parse_record(text) is None


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ('{"result": 1, "note": 5}', {"result": 1}),
        ('{"error": {"type": ["A"], "message": null, "traceback": 7, "rank": 1}}', {"error": {"rank": 1}}),
        ('{"result": "\\ud800"}', {"result": "?"}),
        ('{"result": 1, "checkpoint": "9", "resumed_from": true}', {"result": 1}),
        ('{"checkpoint": 9.5, "resumed_from": 3}', {"resumed_from": 3}),
    ],
)
def test_of_a_record_that_an_image_wrote_by_itself_what_is_right_is_kept(text, record):
    assert parse_record(text) == record


# ---- the whole result ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri", ["{}/out put/r.json", "file://{}/out%20put/r.json", "file://localhost{}/out%20put/r.json"]
)
def test_the_whole_result_goes_where_the_user_asked_for(log, tmp_path, monkeypatch, uri):
    monkeypatch.setenv(env.RESULT_URI, uri.format(tmp_path))
    report_result(["ü" * 9000])

    assert json.loads((tmp_path / "out put" / "r.json").read_bytes()) == ["ü" * 9000]
    assert json.loads(log.read_bytes())["truncated"] is True


def test_a_result_that_is_stored_with_the_model_does_not_change_it(log, tmp_path, monkeypatch):
    model = tmp_path / "model"
    model.mkdir()
    monkeypatch.setenv(env.RESULT_URI, str(model / "result.json"))
    report_result({"artifacts": {"model": model.as_uri()}})

    assert find_change(model.as_uri(), json.loads(log.read_bytes())["stamps"]["model"], None) is None


def test_a_relative_path_is_below_the_working_directory(log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(env.RESULT_URI, "r.json")
    report_result(1)

    assert (tmp_path / "r.json").read_text() == "1"


def test_a_stderr_that_was_closed_does_not_matter(log, monkeypatch, tmp_path):
    closed = (tmp_path / "stderr").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    monkeypatch.setenv(env.RESULT_URI, "s3://bucket/r.json")
    report_result(1)

    assert json.loads(log.read_bytes())["result"] == 1


@pytest.mark.parametrize("uri", ["s3://bucket/r.json", "file://host/r.json", "/dev/null/r.json", "file:///"])
def test_a_result_that_cannot_be_stored_is_noted_and_still_reported(log, monkeypatch, capsys, uri):
    monkeypatch.setenv(env.RESULT_URI, uri)
    report_result({"a": 1})
    record = json.loads(log.read_bytes())

    assert record["result"] == {"a": 1}
    assert record["note"].startswith(f"the result could not be written to {uri}: ")
    assert "the result could not be written" in capsys.readouterr().err


def test_what_is_not_json_is_not_stored(log, tmp_path, monkeypatch):
    monkeypatch.setenv(env.RESULT_URI, str(tmp_path / "r.json"))
    report_result(object())

    assert not (tmp_path / "r.json").exists()
    assert "not JSON" in json.loads(log.read_bytes())["note"]


@pytest.mark.parametrize(("text", "rank"), [("", 0), ("7", 7), ("x", 0), ("-1", 0)])
def test_a_rank_that_is_no_number_is_the_first(monkeypatch, text, rank):
    monkeypatch.setenv("RANK", text)

    assert env.rank() == rank


def test_without_a_launcher_every_process_is_the_first_rank(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)

    assert env.rank() == 0
