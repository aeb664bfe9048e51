"""`make demo`: what a newcomer sees, also when it was killed before, and when it fails."""

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

pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(tmp_path):
    """The demo in a folder of its own, where it keeps everything that it makes."""
    shutil.copytree(ROOT / "dags", tmp_path / "dags")
    (tmp_path / "tools").mkdir()
    return shutil.copy(ROOT / "tools" / "demo.py", tmp_path / "tools")


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "tools" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_trains_a_good_model_right_after_it_was_killed(program, tmp_path):
    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as killed:
        next(line for line in killed.stdout if line.strip() == "task initialize")
        os.killpg(killed.pid, signal.SIGKILL)

    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    shown = dict(re.findall(r"^([A-Z][\w ]+): +(.+)$", done.stdout, flags=re.MULTILINE))
    assert list(shown) == ["TrainJob", "Status", "Test accuracy", "Model", "Its logs"]
    assert shown["Status"] == "Complete"
    assert float(shown["Test accuracy"]) >= 0.95
    assert Path(shown["Model"]).is_file()
    logs = subprocess.run(shlex.split(shown["Its logs"]), capture_output=True, text=True, check=True)
    assert "test accuracy" in logs.stdout


def test_the_reason_of_a_failure_is_what_was_raised_last(demo, capsys):
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
