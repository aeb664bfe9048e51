"""What a node reports when its function ends: one JSON object of at most 4 KiB.

Only rank 0 reports a result; any rank reports its error. The first error of a node is the one to look at, because
the other ranks fail of its consequences: it is replaced neither by a later error nor by a result.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import TracebackException
from typing import Any
from urllib.parse import unquote, urlsplit

from . import contract, files, jsonable

__all__ = [
    "encode_error",
    "encode_result",
    "error_record",
    "parse_record",
    "report_error",
    "report_result",
    "result_record",
]

#: Bytes kept of a message and of a note, as JSON writes them.
_MESSAGE_LIMIT = 1024
_NOTE_LIMIT = 512
#: Stands for what was cut off.
_CUT = "[…] "


def result_record(value: Any) -> dict[str, Any]:
    """Describe what a function returned; what JSON cannot hold becomes a note and never an exception."""
    try:
        data, lost = jsonable.plain(value)
        json.dumps(data)
    except jsonable.NotJsonError as error:
        return {"result": None, "note": str(error)}
    except Exception as error:  # noqa: BLE001 -- foreign objects turn themselves into numbers; the training succeeded
        return {"result": None, "note": f"what the function returned cannot be turned into JSON: {_one_line(error)}"}
    if lost:
        return {"result": data, "note": f"not a finite number, hence null: {', '.join(lost)}"}
    return {"result": data}


def error_record(error: BaseException, output: str | None = None) -> dict[str, Any]:
    """Describe how a function failed: ``type``, ``message``, ``traceback``, ``rank`` (and ``restart``, if any).

    Args:
        error: How.
        output: Says more than Python's traceback, and stands in its place.
    """
    seen = TracebackException(type(error), error, error.__traceback__)
    trace = "".join(seen.format()) if output is None else output
    record = {"type": _type_name(type(error)), "message": str(seen), "traceback": trace.rstrip()}
    again = {"restart": contract.restart()} if contract.restart() else {}
    return {"error": {**record, "rank": contract.rank(), **again}}


def encode_result(record: dict[str, Any]) -> bytes:
    """Return a result's record as JSON that fits; one that does not is left out, and the record says so."""
    note = {"note": _head(record["note"], _NOTE_LIMIT)} if "note" in record else {}
    whole = {"result": record["result"], **note}
    for candidate in (whole, {"result": record["result"]}):
        if len(data := _encode(candidate)) <= contract.RECORD_LIMIT:
            return data
    return _encode({"result": None, "truncated": True, **note})


def encode_error(record: dict[str, Any]) -> bytes:
    """Return an error's record as JSON that fits: of the message the beginning is kept, of the traceback the end."""
    error = dict(record["error"])
    error["type"] = _head(error["type"], _NOTE_LIMIT)
    error["message"] = _head(error["message"], _MESSAGE_LIMIT)
    room = contract.RECORD_LIMIT - len(_encode({"error": {**error, "traceback": ""}}))
    error["traceback"] = _tail(error["traceback"], room)
    return _encode({"error": error})


def parse_record(text: str | bytes) -> dict[str, Any] | None:
    """Read what a node reported; None where it reported nothing, or something else wrote there.

    What an image writes by itself may be half right: what should be a text and is none is left out.
    """
    try:
        record = json.loads(_encode_any(json.loads(text)))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(record.get("error"), dict):
        return {"error": _with_texts(record["error"], ("type", "message", "traceback"))}
    return _with_texts(record, ("note",)) if "error" not in record and "result" in record else None


def _with_texts(record: dict[str, Any], texts: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in texts or isinstance(value, str)}


def _encode_any(record: Any) -> bytes:
    """As JSON that every reader takes: without half surrogate pairs."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")


def report_result(value: Any) -> None:
    """Report what the function returned, if this is rank 0. Never raises: the training has succeeded."""
    if contract.rank() != 0:
        return
    record = result_record(value)
    problem = _store(record)
    if problem:
        _warn(problem)
        record["note"] = "; ".join(filter(None, (problem, record.get("note"))))
    _report(encode_result(record), is_error=False)


def report_error(error: BaseException, output: str | None = None) -> None:
    """Report how the function failed, unless another rank of this node did so before. Never raises.

    Args:
        error: How.
        output: Says more than Python's traceback, and stands in its place.
    """
    _report(encode_error(error_record(error, output)), is_error=True)


def _report(data: bytes, is_error: bool) -> None:
    path = Path(contract.setting(contract.TERMINATION_LOG))
    try:
        with files.locked(path.absolute().parent):
            if not _has_error(path):
                files.write(path, data)
    except OSError as problem:
        what = "error" if is_error else "result"
        _warn(f"the {what} could not be written to {contract.TERMINATION_LOG}={path}: {problem}")


def _has_error(path: Path) -> bool:
    """Say whether an error of this node is on record; one of before torchrun's last restart does not count."""
    try:
        record = parse_record(path.read_bytes())
    except OSError:
        return False
    if not record or "error" not in record:
        return False
    restart = record["error"].get("restart", 0)
    return not isinstance(restart, int) or restart >= contract.restart()


def _store(record: dict[str, Any]) -> str | None:
    """Write the whole result to where the user asked for; say what went wrong."""
    uri = contract.setting(contract.RESULT_URI)
    if not uri or (record["result"] is None and "note" in record):
        return None
    try:
        path = _local_path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, _encode(record["result"]))
    except (OSError, ValueError) as problem:
        return f"the result could not be written to {uri}: {_one_line(problem)}"
    return None


def _local_path(uri: str) -> Path:
    parts = urlsplit(uri)
    if "://" not in uri:
        return Path(uri).absolute()
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError("only a path or a file:// URI can be written to from here")
    return Path(unquote(parts.path))


def _type_name(kind: type[BaseException]) -> str:
    """The exception's name as a traceback shows it: without the module of what is built in."""
    plain = kind.__module__ in ("builtins", "__main__") or kind.__module__.startswith("trainjob_")
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"


def _encode(record: Any) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _head(text: str, limit: int) -> str:
    """The beginning of a text, as much as fits into so many bytes of JSON."""
    if len(text) <= limit and _size(text) <= limit:
        return text
    text = text[:limit]
    return text[: _fitting(len(text), lambda count: _size(text[:count] + " " + _CUT) <= limit)] + " " + _CUT.strip()


def _tail(text: str, limit: int) -> str:
    """The end of a text, as much as fits into so many bytes of JSON."""
    if len(text) <= limit and _size(text) <= limit:
        return text
    text = text[-limit:]
    count = _fitting(len(text), lambda count: _size(_CUT + text[len(text) - count :]) <= limit)
    return _CUT + text[len(text) - count :]


def _fitting(most: int, fits: Callable[[int], bool]) -> int:
    """The largest count that fits, found by halving."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


def _size(text: str) -> int:
    return len(_encode(text)) - 2


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _warn(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # The function may have closed it.
        if sys.stderr is not None:
            print(f"trainjob: {message}", file=sys.stderr, flush=True)
