"""The termination record of a node: one JSON object of at most 4 KiB with its result or error.

From its beginning it has what must survive any end: the use of resources and the newest checkpoint.

Only rank 0 reports a result; every rank reports its error. The first error of a node is kept, because the errors of
other ranks are usually its consequences: no result replaces it, and no error but that of a rank which lost no peer.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import TracebackException
from typing import Any
from urllib.parse import unquote, urlsplit

from . import env, files, jsonable, locks, project

#: Steps of checkpoints and of a pause, and what else is in a record beside a result or error.
_STEPS = ("checkpoint", "resumed_from", "paused_at")
_NUMBERS = (*_STEPS, "oom_kills")
_KEPT = ("resources", "objective", "exits", "oom_kills", *_STEPS)
#: Size limits of a message and of a note, in bytes of JSON.
_MESSAGE_LIMIT = 1024
_NOTE_LIMIT = 512
#: Time to wait for the other processes of a node, which hold the lock for one small write each.
_LOCK_SECONDS = 5.0
#: Errors that the loss of a peer provokes: of gloo, NCCL, torch's stores, sockets, pools of processes, DataLoaders.
_LOST_PEER = re.compile(
    r"connection (was likely |was |is )?(reset|closed|aborted|lost)\b|broken pipe|socket (closed|timeout)"
    r"|timed out waiting [0-9]+ ?ms|wait timeout after|failed to recv|recvValue failed|sendBytes failed"
    r"|(application|collective|operation).{0,40}time(d )?-?out|Watchdog caught|ncclRemoteError|ncclSystemError"
    r"|NCCL communicator was aborted|gloo connectFullMesh failed|failed to connect to any network address"
    r"|DataLoader worker \(.*\) (is killed by signal: Terminated|exited unexpectedly$)"
    r"|died with <Signals.SIG(KILL|TERM)|returned non-zero exit status 143\b"  # A child that was told to stop.
    r"|^the checkpoint was not saved: rank [0-9]+ failed",
    re.IGNORECASE | re.MULTILINE,
)
_LOST_PEER_TYPES = re.compile(
    r"Rendezvous\w*Error|DistNetworkError|DistStoreError|ConnectionResetError|ConnectionAbortedError|BrokenPipeError"
)
#: A process of a pool ended, and the other end of its pipe notices.
_POOL = "multiprocessing/connection.py"
#: Marks truncated text.
_CUT = "[…] "


def result_record(value: Any) -> dict[str, Any]:
    """Describe a return value; what JSON cannot represent is null and named in a note."""
    data, note = jsonable.to_json_data(value)
    return {"result": data, "note": note} if note else {"result": data}


def add_stamps(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a result with the stamps of its artifacts."""
    if artifacts := jsonable.extract_artifacts(record["result"]):
        from . import artifact_stamps  # Only with artifacts.

        if stamps := artifact_stamps.read_stamps(artifacts):
            return {**record, "stamps": stamps}
    return record


def error_record(error: BaseException, output: str | None = None) -> dict[str, Any]:
    """Describe an exception: ``type``, ``message``, ``traceback``, ``rank`` (and ``restart``, if any)."""
    summary = TracebackException(type(error), error, error.__traceback__)
    trace = "".join(summary.format()) if output is None else output
    trace = project.shorten(trace.rstrip())
    message = f"{summary}{_describe_first(error)}"
    record = {"type": _type_name(type(error)), "message": project.shorten(message), "traceback": trace}
    restart = {"restart": env.restart()} if env.restart() else {}
    return {"error": {**record, "rank": env.rank(), **restart}}


def _describe_first(error: BaseException) -> str:
    """Return the first exception of a group, whose own message only counts them; nothing for another exception."""
    group = getattr(builtins, "BaseExceptionGroup", ())  # Since Python 3.11.
    first = error
    while isinstance(first, group):
        first = first.exceptions[0]
    if first is error:
        return ""
    return f": {_type_name(type(first))}: {TracebackException(type(first), first, None)}"


def is_lost_peer(error: Mapping[str, Any]) -> bool:
    """Return whether the loss of a peer provokes an error, or the exception from which it was raised."""
    kind, message, trace = (str(error.get(name) or "") for name in ("type", "message", "traceback"))
    if _LOST_PEER_TYPES.search(kind) or (kind == "EOFError" and _POOL in trace):
        return True
    # The message of a command may be cut before its end.
    is_wrapped = kind.endswith(("SystemExit", "CalledProcessError")) or "direct cause of the following" in trace
    return _LOST_PEER.search(f"{message}\n{trace}" if is_wrapped else message) is not None


def encode_result(record: dict[str, Any]) -> bytes:
    """Return the record of a result as JSON within the limit.

    Of a result that is too large, the metrics and artifacts are kept: ``{"text": "x" * 5000, "loss": 0.1}`` →
    ``{"result": null, "truncated": true, "kept": {"metrics": {"loss": 0.1, "text": null}, "artifacts": {}}, …}``.
    """
    note = {"note": _head(record["note"], _NOTE_LIMIT)} if "note" in record else {}
    pause = {"paused_at": record["paused_at"]} if "paused_at" in record else {}
    # Without room for its stamps, an artifact is known by its time.
    stamps = {key: record[key] for key in ("stamps",) if key in record and len(_encode(record[key])) <= _MESSAGE_LIMIT}
    complete = {"result": record["result"], **pause, **note}
    for candidate in ({**complete, **stamps}, complete, {"result": record["result"]}):
        if len(data := _encode(candidate)) <= env.RECORD_LIMIT:
            return data
    size = f"the result has {len(_encode(record['result']))} bytes as JSON, more than {env.RECORD_LIMIT}"
    cut = {"result": None, "truncated": True, **pause, **stamps, "note": "; ".join([size, *note.values()])}
    metrics = jsonable.extract_metrics(record["result"])
    values = [
        *(("metrics", *each) for each in metrics.items() if each[1] is not None),
        *(("artifacts", *each) for each in jsonable.extract_artifacts(record["result"]).items()),
        *(("metrics", *each) for each in metrics.items() if each[1] is None),
    ]

    def keep(count: int) -> bytes:
        kept: dict[str, Any] = {"metrics": {}, "artifacts": {}}
        for entry, name, value in values[:count]:
            kept[entry][name] = value
        return _encode({**cut, "kept": kept if count == len(values) else {**kept, "incomplete": True}})

    return keep(_fitting(len(values), lambda count: len(keep(count)) <= env.RECORD_LIMIT))


def encode_error(record: dict[str, Any], limit: int = env.RECORD_LIMIT) -> bytes:
    """Return the record of an error as JSON within a limit: the start of the message, the end of the traceback."""
    error = {"type": "", "message": "", "traceback": "", **record["error"]}
    error["type"] = _head(error["type"], _NOTE_LIMIT)
    error["message"] = _head(error["message"], _MESSAGE_LIMIT)
    room = limit - len(_encode({"error": {**error, "traceback": ""}}))
    error["traceback"] = _tail(error["traceback"], room)
    return _encode({"error": error})


def parse_record(text: str | bytes) -> dict[str, Any] | None:
    """Parse a termination record; return None if it is missing or was written by another program.

    Fields of the wrong type are left out.
    """
    try:
        record = json.loads(_encode_any(json.loads(text)))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    record = {key: value for key, value in record.items() if _is_readable(key, value)}
    kept = _select_kept(record)
    if isinstance(record.get("error"), dict):
        return {"error": _with_string_fields(record["error"], ("type", "message", "traceback")), **kept}
    if "error" not in record and "result" in record:
        return _with_string_fields(record, ("note",))
    # Of a node that has not ended, or was killed.
    return kept or None


def _is_readable(key: str, value: Any) -> bool:
    if key == "exits":
        return isinstance(value, dict) and all(type(code) is int for code in value.values())
    if key == "stamps":
        return isinstance(value, dict) and all(isinstance(stamp, str) for stamp in value.values())
    return key not in _NUMBERS or type(value) is int


def _with_string_fields(record: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in names or isinstance(value, str)}


def _encode_any(record: Any) -> bytes:
    """Encode as JSON without lone surrogates."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")


def report_result(value: Any) -> None:
    """Report the return value, if this is rank 0. Never raises: the training has succeeded."""
    report_record({} if env.rank() else result_record(value))


def report_record(record: dict[str, Any]) -> bool:
    """Report the record of a return value, if this is rank 0; return whether nothing is left to report."""
    if env.rank() != 0:
        return True
    problem = _store(record)
    if problem:
        _warn(problem)
        record["note"] = "; ".join(filter(None, (problem, record.get("note"))))
    # Last: the result, and what the ranks share, may be stored in the folder of an artifact.
    data = encode_result(add_stamps(record))
    return _report("result", lambda _, error: None if error else data, Path(env.setting(env.TERMINATION_LOG)))


def report_error(error: BaseException, output: str | None = None) -> None:
    """Report the exception, unless another rank of this node has reported one. Never raises."""
    report_error_record(error_record(error, output), Path(env.setting(env.TERMINATION_LOG)))


def report_error_record(record: dict[str, Any], path: Path) -> None:
    """Report an error of a node, unless a better one of it is recorded. Never raises."""

    def encode(limit: int, known: dict[str, Any] | None) -> bytes:
        return encode_error({"error": _choose_error(known, record["error"])}, limit)

    _report("error", encode, path)


def _choose_error(known: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Return the first of two errors that no lost peer provoked, with the ranks that lost one as ``lost``."""
    known = known or {}
    chosen = new if not known or (is_lost_peer(known) and not is_lost_peer(new)) else known
    before = known.get("lost")
    lost = [*(before if isinstance(before, list) else ()), *([new.get("rank", 0)] if is_lost_peer(new) else [])]
    return {**chosen, "lost": lost} if lost else chosen


def report_values(path: Path, **values: Any) -> None:
    """Add ``resources``, ``objective`` or a step, such as ``checkpoint``, to the record of a node. Never raises.

    The traceback of an error makes room for it. A result without room for it, and what another program wrote to the
    file, stay as they are.
    """
    with contextlib.suppress(OSError), locks.locked_if_possible(path.absolute().parent, _LOCK_SECONDS):
        data = path.read_bytes() if path.is_file() else b""
        record = parse_record(data) if data.strip() else {}
        if record is not None:
            record.update(values)
            new = _encode(record)
            if "error" in record:
                new = _add_kept(lambda limit: encode_error(record, limit), _select_kept(record)) or new
            if len(new) <= env.RECORD_LIMIT:
                files.write(path, new)


def _report(what: str, encode: Callable[[int, dict[str, Any] | None], bytes | None], path: Path) -> bool:
    """Write what `encode` returns for a size limit and the known error, and what `report_values` wrote.

    Return whether it is written, or an error that was reported before.
    """
    try:
        with locks.locked_if_possible(path.absolute().parent, _LOCK_SECONDS):
            record = read_record(path)
            error = record["error"] if _has_error(record) else None
            data = _add_kept(lambda limit: encode(limit, error), _select_kept(record))
            if data is not None:
                files.write(path, data)
    except OSError as problem:
        _warn(f"the {what} could not be written to {env.TERMINATION_LOG}={path}: {problem}")
        return False
    return True


def _add_kept(encode: Callable[[int], bytes | None], kept: dict[str, Any]) -> bytes | None:
    """Return what `encode` returns for a size limit, with the kept values if there is room for both."""
    data = encode(env.RECORD_LIMIT - len(_encode(kept)))
    complete = _encode({**json.loads(data), **kept}) if data else b""
    return complete if data and len(complete) <= env.RECORD_LIMIT else data


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a node; empty if there is none, or one that cannot be read."""
    try:
        return parse_record(path.read_bytes()) or {}
    except OSError:
        return {}


def _select_kept(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in _KEPT if key in record}


def _has_error(record: dict[str, Any]) -> bool:
    """Return whether an error of this node is recorded; one from before torchrun's last restart does not count."""
    if "error" not in record:
        return False
    restart = record["error"].get("restart", 0)
    return not isinstance(restart, int) or restart >= env.restart()


def _store(record: dict[str, Any]) -> str | None:
    """Write the whole result to the URI that the user chose; return the problem, if any."""
    uri = env.setting(env.RESULT_URI)
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
        raise ValueError("only a path or a file:// URI is supported")
    return Path(unquote(parts.path))


def _type_name(kind: type[BaseException]) -> str:
    """Return the name of the exception as in a traceback: without the module of built-in exceptions."""
    plain = kind.__module__ in ("builtins", "__main__") or kind.__module__.startswith("trainjob_")
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"


def _encode(record: Any) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _head(text: str, limit: int) -> str:
    """Return the beginning of a text that fits into a number of JSON bytes."""
    if len(text) <= limit and _size(text) <= limit:
        return text
    text = text[:limit]
    return text[: _fitting(len(text), lambda count: _size(text[:count] + " " + _CUT) <= limit)] + " " + _CUT.strip()


def _tail(text: str, limit: int) -> str:
    """Return the end of a text that fits into a number of JSON bytes."""
    if len(text) <= limit and _size(text) <= limit:
        return text
    text = text[-limit:]
    count = _fitting(len(text), lambda count: _size(_CUT + text[len(text) - count :]) <= limit)
    return _CUT + text[len(text) - count :]


def _fitting(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest count that fits, by bisection."""
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
    with contextlib.suppress(OSError, ValueError):  # The function may have closed stderr.
        if sys.stderr is not None:
            print(f"trainjob: {message}", file=sys.stderr, flush=True)
