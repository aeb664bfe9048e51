"""The modules of this project that each front end loads when it starts: `tests/unit/data/start` has the lists.

A new module in a list costs every start of that front end; import it where it is used, or rewrite the lists with
`TRAINJOB_UPDATE_GOLDEN=1` and review the difference.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LISTS = Path(__file__).parent / "data" / "start"
PROGRAMS = {
    "dag-file": """
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainerContainer
TrainJobOperator(task_id="train", trainer=CustomTrainerContainer(image="registry.example/train:1"))
""",
    "kfp-wait-step": """
from kfp_components.step.entrypoint import load_target
from trainer_core.client import backend_for
load_target("wait"), backend_for("kubernetes")
""",
    "trainjob-list": """
from trainer_core.cli import main
main(["list"])
""",
    "local-supervisor": """
from trainer_core.backends.local import gc, supervisor
from trainer_core.backends.local.runner import LocalJobRunner
""",
}
PRINT = """
import sys
print(*(name for name in sys.modules if name.startswith(("trainer_core", "airflow_provider", "kfp_components"))))
"""


def read_list(name: str, loaded: list[str]) -> list[str]:
    """Return the list of a front end; with TRAINJOB_UPDATE_GOLDEN set, write it first."""
    path = LISTS / f"{name}.txt"
    if os.environ.get("TRAINJOB_UPDATE_GOLDEN"):
        path.write_text("\n".join(loaded) + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").split()


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_start_loads_the_listed_modules(name, tmp_path):
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "TRAINJOB_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAMS[name] + PRINT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
    loaded = sorted(done.stdout.splitlines()[-1].split())

    assert loaded == read_list(name, loaded)
