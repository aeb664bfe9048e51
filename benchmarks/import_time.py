"""What importing costs, in fresh interpreters: the core, and the operators on top of Airflow's own SDK.

Prints the best of several runs: `import trainer_core` with all its public names (target: at most 0.15 s) and what
`airflow_provider.operators.trainjob` adds to `airflow.sdk` (target: at most 0.05 s), beside KubernetesPodOperator
where that provider is installed.
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
start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
"""


def best(statement: str, before: str = "") -> float | None:
    """Return the fewest seconds a statement took in a fresh interpreter; None if it cannot run."""
    program = TIMER.format(before=before, statement=statement)
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        taken = []
        for _ in range(ROUNDS):
            run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
            if run.returncode:
                return None
            taken.append(float(run.stdout.split()[-1]))
    return min(taken)


def main() -> None:
    sdk = "from airflow.sdk import BaseOperator, BaseSensorOperator, BaseHook, dag, task"
    pod = "from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator"
    rows = {
        "import trainer_core, every public name": best("from trainer_core import *"),
        "airflow.sdk": best(sdk),
        "airflow_provider.operators.trainjob over airflow.sdk": best("import airflow_provider.operators.trainjob", sdk),
        "KubernetesPodOperator over airflow.sdk": best(pod, sdk),
    }
    for name, value in rows.items():
        print(f"{name}: {'not installed' if value is None else f'{value:.3f} s'}")


if __name__ == "__main__":
    main()
