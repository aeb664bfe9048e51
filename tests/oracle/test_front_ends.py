"""Modules of the oracle through the real front ends, each with whole trainings on this machine."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from datetime import datetime, timezone

import modules
import pytest
from airflow.sdk import DAG, task
from kfp_driver import DrivenTask, request_for

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer

#: What Airflow does to its own modules is not checked here.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore", "error:::trainer_core")]

#: Features whose values are JSON, in one function.
_FEATURES = (
    *("quotes", "braces", "unicode", "long text", "continued", "continued text", "semicolons", "comment", "form feed"),
    *("match", "walrus inside", "dataclass inside", "class variable inside", "nonlocal", "super inside", "recursion"),
    *("import inside", "dynamic import", "logger"),
)
CASES = {
    "plain": modules.Case("def", "utf-8", _FEATURES),
    "tabs in a class": modules.Case("static", "tabs", _FEATURES),
    "one of two, in latin-1": modules.Case("one of two", "cookie", _FEATURES),
    "decorated, with carriage returns": modules.Case("registered", "crlf", _FEATURES),
    "in a branch, with postponed annotations": modules.Case("else", "future", _FEATURES[:11]),
}
REFUSED = {
    "a shadowed builtin": modules.Case(features=(("import", "max", "class body"),)),
    "a default set later": modules.Case(maker="default replaced", features=("quotes",)),
    "a name in the text of eval": modules.Case(features=(("def", "rate", "eval"),)),
}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Write the module of a case and import its function; the second value is the answer of a fresh interpreter."""
    user = tmp_path / "user"
    user.mkdir()
    for helper, text in modules.HELPERS.items():
        (user / helper).write_text(text)
    monkeypatch.syspath_prepend(str(user))
    monkeypatch.chdir(user)

    def load(case):
        data, entry = case.render()
        (user / "oracle_case.py").write_bytes(data)
        call = f"import json, oracle_case; print(json.dumps(oracle_case.{entry}()))"
        ended = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, cwd=user, check=True)
        importlib.invalidate_caches()
        return getattr(importlib.import_module("oracle_case"), entry), json.loads(ended.stdout)

    yield load
    for name in ("oracle_case", *(helper.removesuffix(".py") for helper in modules.HELPERS)):
        sys.modules.pop(name, None)


def by_python(client, function, folder, **fields):
    return client.wait(client.train(runtime="python", trainer=CustomTrainer(function, **fields))).result


def by_command(client, function, folder):
    program = [sys.executable, "-c", "import sys; from trainer_core.cli import main; sys.exit(main())"]
    arguments = ["submit", "oracle_case:train", "--code", ".", "--runtime", "python", "--wait", "-o", "json"]
    ended = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return client.wait(client.list_jobs()[0].name).result


def by_kfp(client, function, folder):
    step = DrivenTask("train", folder / "run", {"request": request_for(function)}, {}).run()
    assert step.returncode == 0, step.stderr
    return client.wait(client.list_jobs()[0].name).result


WAYS = {
    "source": by_python,
    "project": lambda *given: by_python(*given, code="."),
    "cloudpickle": lambda *given: by_python(*given, packaging="cloudpickle"),
    "command": by_command,
    "KFP": by_kfp,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_a_front_end_gives_the_answer_of_a_plain_call(trainjob_client, load, tmp_path, case, way):
    function, answer = load(CASES[case])

    assert WAYS[way](trainjob_client, function, tmp_path) == answer


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
def test_a_dag_gives_the_answers_of_plain_calls(run_trainjob_dag, trainjob_client, load, native):
    function, answer = load(CASES["plain"])
    start = datetime(2024, 1, 1, tzinfo=timezone.utc)
    with DAG(f"oracle_{native}", schedule=None, start_date=start, render_template_as_native_obj=native) as dag:
        TrainJobOperator(task_id="source", runtime="python", trainer=CustomTrainer(function))
        TrainJobOperator(task_id="project", runtime="python", trainer=CustomTrainer(function, code="."))
        task.trainjob(runtime="python", task_id="decorated")(function)()

    run_trainjob_dag(dag)

    assert [trainjob_client.wait(job.name).result for job in trainjob_client.list_jobs()] == [answer] * 3


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_that_cannot_travel_is_refused_before_anything_is_created(trainjob_client, load, case):
    function, _ = load(REFUSED[case])

    with pytest.raises(ValueError, match='code="path/to/project"') as caught:
        trainjob_client.train(runtime="python", trainer=CustomTrainer(function))
    with (
        DAG("oracle", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=timezone.utc)),
        pytest.raises(ValueError, match='code="path/to/project"'),
    ):
        TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(function))

    assert "\n" not in str(caught.value)
    assert trainjob_client.list_jobs() == []
