"""Cancellations that may not have reached their backend: one file each in the state folder, for the next process.

A file is written before a job is cancelled for an orchestrator, and removed afterwards. What is left belongs to a job
that no task waits for: the process was killed, or the backend did not answer.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core.base.errors import JobNotFoundError, TrainerError
from trainer_core.client import TrainerClient
from trainer_core.model.jobs import ATTACHED_LABEL, TrainJobRef
from trainer_core.model.request import Owner
from trainer_core.node import files

_log = logging.getLogger(__name__)
_ASKED_AT = "asked_at"


def add(ref_data: Mapping[str, Any]) -> None:
    """Record that a TrainJob is to be cancelled; without a folder that can be written, log it."""
    path = _get_path(ref_data)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(path, json.dumps({**ref_data, _ASKED_AT: int(time.time())}).encode())
    except OSError as error:
        _log.warning("TrainJob %s: its cancellation is not recorded: %s", ref_data.get("name"), error)


def remove(ref_data: Mapping[str, Any]) -> None:
    """Forget a cancellation: it is done, or the TrainJob is gone."""
    with suppress(OSError):
        _get_path(ref_data).unlink(missing_ok=True)


def cancel_pending(client: TrainerClient) -> Iterator[tuple[str, TrainerError | None]]:
    """Cancel the TrainJobs of a client's backend and cluster that are still to be cancelled."""
    found = [entry for entry in _list_entries() if entry["backend"] == client.config.backend]
    if not found:
        return
    try:
        place = client.backend.get_place(None) if any("server" in entry for entry in found) else None
    except TrainerError as error:
        yield from ((str(entry["name"]), error) for entry in found)
        return
    server = place and place.partition("/")[0]
    for entry in found:
        # Where the place differs, a job that is not found proves nothing.
        if "server" in entry and entry["server"] != server:
            continue
        try:
            if _is_wanted_again(client, entry):
                _log.info("TrainJob %s: a task waits for it again; it is not cancelled", entry["name"])
            else:
                cancel(client, entry)
                yield str(entry["name"]), None
        except TrainerError as error:
            yield str(entry["name"]), error
        else:
            remove(entry)


def cancel(client: TrainerClient, ref_data: Mapping[str, Any]) -> None:
    """Cancel a TrainJob, or the whole search that it is the first TrainJob of. Succeeds if it has ended."""
    if "search" not in ref_data:
        client.cancel(TrainJobRef.from_dict(ref_data))
        return
    from trainer_core.search.driver import SearchDriver  # Only for searches.

    with suppress(JobNotFoundError), SearchDriver.open(client, Owner(**ref_data["search"])) as driver:
        driver.cancel()


def _is_wanted_again(client: TrainerClient, entry: Mapping[str, Any]) -> bool:
    with suppress(JobNotFoundError):
        attached_at = client.get_job(TrainJobRef.from_dict(entry)).labels.get(ATTACHED_LABEL, "0")
        return int(attached_at) >= int(entry[_ASKED_AT])
    return False


def _list_entries() -> list[dict[str, Any]]:
    entries = []
    for path in sorted(_get_folder().glob("*.json")):
        with suppress(OSError, ValueError):
            entry = json.loads(path.read_text(encoding="utf-8"))
            TrainJobRef.from_dict(entry)
            entries.append(entry)
    return entries


def _get_folder() -> Path:
    return Path(os.environ.get("TRAINJOB_HOME") or "~/.trainjob").expanduser().absolute() / "cancellations"


def _get_path(ref_data: Mapping[str, Any]) -> Path:
    return _get_folder() / f"{Path(str(ref_data['uid'])).name}.json"
