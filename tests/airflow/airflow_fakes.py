"""A task instance and training functions, for tests that need no Airflow around an operator."""

from __future__ import annotations

import datetime
import itertools
import uuid


class FakeTaskInstance:
    """What an operator asks of its task instance; XComs are kept."""

    _runs = itertools.count()

    def __init__(self, task_id="train", *, run_id=None, try_number=1, max_tries=0, map_index=-1):
        self.id = uuid.uuid4()
        self.dag_id = "a_dag"
        self.run_id = run_id or f"run-{next(self._runs)}"
        self.task_id = task_id
        self.map_index = map_index
        self.try_number = try_number
        self.max_tries = max_tries
        self.start_date = datetime.datetime.now(datetime.timezone.utc)
        self.context_carrier = None
        self.xcoms = {}

    def xcom_push(self, key, value):
        self.xcoms[key] = value

    def xcom_pull(self, task_ids, key, map_indexes):
        return self.xcoms.get(key)

    def next_try(self, *, cleared=False):
        """The same task, tried again by Airflow, or cleared by a person."""
        again = FakeTaskInstance(self.task_id, run_id=self.run_id, try_number=self.try_number + 1)
        again.max_tries = self.max_tries + 1 if cleared else self.max_tries
        return again


def double(number: int) -> dict:
    print(f"doubling {number}")
    return {"doubled": 2 * number, "metrics": {"number": number}, "artifacts": {"model": "file:///model"}}


def wait_for_file(path: str, started: str = "") -> str:
    import pathlib
    import time

    if started:
        pathlib.Path(started).touch()
    print(f"waiting for {path}")
    while not pathlib.Path(path).exists():
        time.sleep(0.02)
    return "it came"


def fail(message: str) -> None:
    print("about to fail")
    raise ValueError(message)


def die() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
