"""DAGs whose training functions travel with the files of a project."""

from __future__ import annotations

import json
import textwrap

import pytest

from airflow_provider.testing.compat import DagSerialization
from trainer_core.cli import main

HEAD = """
from datetime import datetime, timezone
from airflow.sdk import DAG, task
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer

@task.trainjob(runtime="python", code="scoring")
def score(x: int):
    from scoring.rules import weigh

    return weigh(x)

with DAG("scores", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=timezone.utc), params={"x": 4}):
"""


@pytest.fixture
def write_dags(tmp_path):
    """Write a DAG file with these tasks, and a project beside it; return the folder."""

    def write(tasks):
        folder = tmp_path / "dags"
        (folder / "scoring").mkdir(parents=True)
        (folder / "scoring/__init__.py").touch()
        (folder / "scoring/rules.py").write_text(
            "FACTOR = 10\ndef weigh(x: int):\n    return x * FACTOR  # {{ no.template }}\n"
        )
        (folder / "scores.py").write_text(HEAD + textwrap.indent(tasks, "    "))
        return folder

    return write


RULES = """\
FACTOR = 10
def weigh(x: int):
    return x * FACTOR  # {{ no.template }}
"""
OPERATOR = """
TrainJobOperator(
    task_id="train", runtime="python",
    trainer={"func": "scoring.rules:weigh", "func_args": {"x": "{{ params.x }}"}, "code": "scoring"},
)
"""


def test_a_relative_path_is_relative_to_the_dag_file(write_dags, trainjob_dags, run_trainjob_dag):
    run = run_trainjob_dag(trainjob_dags(write_dags(OPERATOR))["scores"])
    assert (run.state, run.xcom("train")) == ("success", 40)


def test_the_function_of_a_decorated_task_imports_from_its_code(write_dags, trainjob_dags, run_trainjob_dag):
    run = run_trainjob_dag(trainjob_dags(write_dags("score.expand(x=[1, 2])"))["scores"])
    assert [run.xcom("score", map_index=index) for index in range(2)] == [10, 20]


def test_the_files_are_in_no_template_field_and_their_digest_is(write_dags, trainjob_dags):
    dag = trainjob_dags(write_dags(OPERATOR))["scores"]
    project = dag.get_task("train").spec["trainer"]["code"]["project"]
    assert set(project) == {"digest", "files", "size", "roots"}
    serialized = json.dumps(DagSerialization.to_dict(dag))
    assert project["digest"] in serialized
    assert len(serialized) < 10_000


def test_an_import_that_does_not_travel_is_found_by_lint(write_dags, tmp_path, monkeypatch, capsys, airflow_db):
    folder = write_dags(OPERATOR)
    (folder / "helpers.py").touch()
    with (folder / "scoring/rules.py").open("a") as file:
        file.write("from .missing import x\nimport helpers\n")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["lint", "dags", "-o", "json"]) == 2
    problems = [problem["problem"] for problem in json.loads(capsys.readouterr().out)]
    assert [problem.partition(",")[0] for problem in problems] == [
        "code: scoring/rules.py:4 imports scoring.missing",
        "code: scoring/rules.py:5 imports helpers",
    ]
