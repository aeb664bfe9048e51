"""The DAGs of the documentation, run by Airflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
PAGES = {"guide": GUIDES / "airflow.md", "tutorial": GUIDES / "your-own-project.md", "readme": ROOT / "README.md"}
PAGES["search"] = GUIDES / "search.md"
#: Modules beside the DAGs.
TRAINING = ("train.py", "model.py", "rows.py")
FILE = re.compile(r"```python\n# (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.M | re.S)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "dag_id", "task_id", "key", "value"),
    [
        ("search", "guide_search", "final", "status", "Complete"),
        ("guide", "guide_train", "train", "status", "Complete"),
        ("guide", "guide_two_tasks", "wait", "status", "Complete"),
        ("guide", "guide_function", "train", "layers", [64, 10]),
        ("guide", "guide_sweep", "best_of", "return_value", {"metrics": {"loss": 0.0}, "lr": 0.1}),
        ("tutorial", "nightly_fit", "fit", "status", "Complete"),
        ("readme", "nightly", "train", "status", "Complete"),
    ],
)
def test_a_documented_dag_runs(page, dag_id, task_id, key, value, trainjob_dags, run_dag, xcom, tmp_path):
    folder = tmp_path / "dags"
    folder.mkdir()
    for block in FILE.finditer(PAGES[page].read_text(encoding="utf-8")):
        if "@dag" in block["text"] or block["name"] in TRAINING:
            (folder / block["name"]).write_text(block["text"])

    run = run_dag(trainjob_dags(folder)[dag_id])
    assert run.state == "success"
    assert xcom(run, task_id, key) == value
