"""Worker for tests: runs a task in processes that can be killed.

Airflow is imported once; each try is a fork of this program. Commands are read from stdin, one JSON object a line;
each is answered by one line, when its try has ended.

    {"folder": …, "try": 1, "stop": "after-submit", "kill_after": null, "deferrable": false, "on_kill": "cancel"}

`stop` names the point where the try kills itself with SIGKILL; `kill_after` the seconds after which it is killed from
outside. SIGTERM is handled as Airflow's task runner does; `state` is the state of the task in Airflow's database. What
a try returned or raised lies in `folder/try-N.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import sys
import time

from airflow_provider import cancellation
from airflow_provider.compat import TaskDeferred
from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import CustomTrainer


def train(folder: str) -> int:
    """Count the run; continue until the gate opens."""
    import pathlib
    import time

    with pathlib.Path(folder, "runs").open("a") as runs:
        runs.write("run\n")
    while not pathlib.Path(folder, "gate").exists():
        time.sleep(0.02)
    return 42


def die_at(point: str, stop: str | None) -> None:
    if point == stop:
        os.kill(os.getpid(), signal.SIGKILL)


class Task(TrainJobOperator):
    """Operator that stops at a point that the test chooses."""

    stop: str | None = None

    def _submit(self):
        die_at("before-submit", self.stop)
        ref = super()._submit()
        die_at("after-submit", self.stop)
        return ref

    def _wait(self, attempt):
        die_at("before-waiting", self.stop)
        return super()._wait(attempt)

    def defer(self, **arguments):
        die_at("before-deferring", self.stop)
        super().defer(**arguments)

    def _record_end(self, end):
        die_at("before-finishing", self.stop)
        super()._record_end(end)

    def _finish(self, end):
        result = super()._finish(end)
        die_at("before-returning", self.stop)
        return result


class TaskInstance(StandInTaskInstance):
    """Task instance that stores XComs in files."""

    folder = ""
    stop: str | None = None

    def xcom_push(self, key, value):
        die_at(f"before-xcom-{key}", self.stop)
        pathlib.Path(self.folder, f"xcom-{key}.json").write_text(json.dumps(value))
        die_at(f"after-xcom-{key}", self.stop)


def run(command: dict) -> None:
    folder = pathlib.Path(command["folder"])
    operator = Task(
        task_id="train",
        runtime="python",
        trainer=CustomTrainer(train, {"folder": str(folder)}),
        backend_config={"home": str(folder / "home")},
        deferrable=command.get("deferrable", False),
        on_kill=command.get("on_kill", "cancel"),
    )
    ti = TaskInstance(run_id="run", try_number=command["try"], max_tries=3)
    ti.state = command.get("state", "running")
    operator.stop = ti.stop = command.get("stop")
    ti.folder = str(folder)
    signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
    (folder / f"started-{command['try']}").write_text(str(os.getpid()))
    try:
        answer = {"returned": execute(operator, ti)}
    except Exception as error:  # noqa: BLE001 - a test reads what a try failed with
        answer = {"raised": type(error).__name__, "message": str(error)}
    (folder / f"try-{command['try']}.json").write_text(json.dumps(answer))


def execute(operator: Task, ti: TaskInstance):
    try:
        return operator.execute({"ti": ti})
    except TaskDeferred as deferred:
        die_at("deferred", operator.stop)
        event = asyncio.run(anext(deferred.trigger.run()))
        return operator.resume_execution(deferred.method_name, {"event": event.payload}, {"ti": ti})


def attempt(command: dict) -> None:
    child = os.fork()
    if child == 0:
        run(command)
        os._exit(0)
    if command.get("kill_after") is not None:
        time.sleep(command["kill_after"])
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


if __name__ == "__main__":
    # Also on a busy machine, a try that is stopped reports what it did with its job.
    cancellation._SIGNAL_HANDLER_SECONDS = 300.0
    print("ready", flush=True)
    for line in sys.stdin:
        attempt(json.loads(line))
        print("done", flush=True)
