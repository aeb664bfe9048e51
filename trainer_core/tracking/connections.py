"""Connections of this process to tracking servers: one to each server for submits, and one for everything else."""

from __future__ import annotations

import atexit
import os
import threading

from trainer_core.tracking.mlflow_api import MlflowApi
from trainer_core.tracking.server import MlflowServer

__all__ = ["get_report_api", "get_submit_api"]

#: A submit waits this long for each answer of the server.
_SUBMIT_TIMEOUT = 2.0
_REPORT_TIMEOUT = 5.0
#: Requests a second of all waiters of the process together.
_MAX_REPORT_RATE = 200.0

_apis: dict[tuple[MlflowServer, bool], MlflowApi] = {}
_lock = threading.Lock()


def get_submit_api(server: MlflowServer) -> MlflowApi:
    """Return the API of a server for requests that a submit waits for. Reports do not occupy its connection.

    Args:
        server: The server.
    """
    return _get_api(server, True)


def get_report_api(server: MlflowServer) -> MlflowApi:
    """Return the API of a server for requests that no submit waits for, all of a process by one connection.

    Args:
        server: The server.
    """
    return _get_api(server, False)


def _get_api(server: MlflowServer, is_submit: bool) -> MlflowApi:
    with _lock:
        api = _apis.get((server, is_submit))
        if api is None:
            api = (
                MlflowApi(server, _SUBMIT_TIMEOUT)
                if is_submit
                else MlflowApi(server, _REPORT_TIMEOUT, _MAX_REPORT_RATE)
            )
            _apis[server, is_submit] = api
        return api


def _close() -> None:
    for api in _apis.values():
        api.close()


def _forget() -> None:
    """Leave the connections to the parent process; a thread of it may have held the lock."""
    global _lock
    _apis.clear()
    _lock = threading.Lock()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
