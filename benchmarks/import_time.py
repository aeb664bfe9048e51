"""What importing costs, in fresh interpreters: the core, and the operators on top of Airflow's own SDK.

Prints the best of several runs in seconds of processor time, in turns so that all meet the same machine, and the ratio
to the import of `airflow.sdk`: `import trainer_core` with all its public names (target: at most 0.20), what
`airflow_provider.operators.trainjob` adds to `airflow.sdk` (target: at most 0.07), and KubernetesPodOperator where that
provider is installed. The first round compiles, as pip does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

ROUNDS = int(os.environ.get("ROUNDS", "5"))
TIMER = """
import time
{before}
start = time.process_time()
{statement}
print(time.process_time() - start)
"""
SDK = "from airflow.sdk import BaseOperator, BaseSensorOperator, BaseHook, dag, task"
#: Each import with what is imported before it.
IMPORTS = {
    "airflow.sdk": (SDK, ""),
    "import trainer_core, every public name": ("from trainer_core import *", ""),
    "airflow_provider.operators.trainjob over airflow.sdk": ("import airflow_provider.operators.trainjob", SDK),
    "KubernetesPodOperator over airflow.sdk": (
        "from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator",
        SDK,
    ),
}


def measure(statement: str, before: str, home: str) -> float | None:
    """Return the processor seconds of a statement in a fresh interpreter; None if it cannot run."""
    env = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    env["PYTHONPYCACHEPREFIX"] = f"{home}/compiled"
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    program = TIMER.format(before=before, statement=statement)
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    return None if run.returncode else float(run.stdout.split()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        rounds = [{name: measure(*each, home) for name, each in IMPORTS.items()} for _ in range(ROUNDS + 1)][1:]
    found = {name: [value for each in rounds if (value := each[name]) is not None] for name in IMPORTS}
    best = {name: min(values, default=None) for name, values in found.items()}
    sdk = best["airflow.sdk"]
    for name, value in best.items():
        print(f"{name}: " + ("not installed" if value is None or not sdk else f"{value:.3f} s, {value / sdk:.2f}"))


if __name__ == "__main__":
    main()
