"""`make demo`: its output, a restart after a kill, and failures."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from optional_packages import requires

pytestmark = requires("torch", "sklearn")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(tmp_path):
    """The demo in a separate folder for its data."""
    shutil.copytree(ROOT / "dags", tmp_path / "dags")
    (tmp_path / "tools").mkdir()
    return shutil.copy(ROOT / "tools" / "demo.py", tmp_path / "tools")


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "tools" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.deep
@pytest.mark.timeout(1200)  # a whole Airflow starts twice
def test_the_demo_can_be_killed_and_started_again(program, tmp_path):
    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as killed:
        next(line for line in killed.stdout if line.strip() == "task initialize")
        os.killpg(killed.pid, signal.SIGKILL)

    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    shown = dict(re.findall(r"^([A-Z][\w ]+): +(.+)$", done.stdout, flags=re.MULTILINE))
    assert list(shown) == ["TrainJob", "Status", "Test accuracy", "Model", "Logs"]
    assert shown["Status"] == "Complete"
    assert float(shown["Test accuracy"]) >= 0.95
    assert Path(shown["Model"]).is_file()
    logs = subprocess.run(shlex.split(shown["Logs"]), capture_output=True, text=True, check=True)
    assert "test accuracy" in logs.stdout


def test_the_reason_of_a_failure_is_the_last_exception(demo, capsys):
    log = """\
2026-11-21T00:36:49Z [info     ] RuntimeError: no data [airflow.task.x.airflow_provider.y] loc=trainjob.py:155
2026-11-21T00:36:51Z [error    ] The training function failed:
RuntimeError: no data [airflow.task.x.airflow_provider.y] loc=handover.py:35
2026-11-21T00:36:51Z [error    ] Task failed with exception     [task] loc=task_runner.py:1639
Traceback (most recent call last):
airflow_provider.exceptions.TrainJobFailedForGoodError: TrainJob 'a' is Failed: RuntimeError: no data
"""

    errors = demo.show_lines(log.splitlines())

    assert errors[-1] == "TrainJobFailedForGoodError: TrainJob 'a' is Failed: RuntimeError: no data"
    assert capsys.readouterr().out.strip() == "RuntimeError: no data"
