"""What goes in through a DAG comes out of its job with the value and type that the signature names."""

from __future__ import annotations

import importlib
import itertools
from datetime import datetime, timezone

import odd_values
import pytest
import yaml
from airflow.sdk import DAG, task

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import Annotations, CustomTrainer, Labels

_ids = itertools.count()
#: Each DAG runs whole trainings.
pytestmark = pytest.mark.slow


@pytest.fixture
def training(tmp_path, monkeypatch):
    """The module with the training function of `odd_values`."""
    (tmp_path / "odd_training.py").write_text(odd_values.SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "odd_training", raising=False)
    importlib.invalidate_caches()
    return importlib.import_module("odd_training")


@pytest.fixture(params=[False, True], ids=["text", "native"])
def native(request):
    """Whether the DAG renders its templates as native objects."""
    return request.param


def a_dag(native, **arguments):
    start = datetime(2024, 1, 1, tzinfo=timezone.utc)
    return DAG(
        f"values_{next(_ids)}", schedule=None, start_date=start, render_template_as_native_obj=native, **arguments
    )


def test_constants_never_change(run_dag, training, tmp_path, native):
    cases = list(odd_values.each_case(odd_values.convert))
    args = odd_values.accepted(cases)
    with a_dag(native) as dag:
        trainer = CustomTrainer(training.train, {**args, "out": str(tmp_path / "trainer")})
        TrainJobOperator(task_id="trainer", runtime="python", trainer=trainer)
        override = {**args, "out": str(tmp_path / "override")}
        TrainJobOperator(
            task_id="override", runtime="python", trainer=CustomTrainer(training.train), func_args=override
        )
        definition = yaml.safe_dump({"func": "odd_training:train", "code": str(tmp_path), "func_args": {}})
        TrainJobOperator(
            task_id="yaml", runtime="python", trainer=definition, func_args={**args, "out": str(tmp_path / "yaml")}
        )
        decorated = task.trainjob(runtime="python", task_id="decorated")(training.train)
        decorated(**{**args, "out": str(tmp_path / "decorated")})
        mapped = {**args, "out": str(tmp_path / "mapped")}
        TrainJobOperator.partial(task_id="mapped", runtime="python", trainer=CustomTrainer(training.train)).expand(
            func_args=[mapped]
        )

    run_dag(dag)

    for name in ("trainer", "override", "yaml", "decorated", "mapped"):
        assert odd_values.written(tmp_path / name, cases) == odd_values.answers(cases), name


def test_a_template_gets_the_type_of_its_place(run_dag, training, tmp_path, native):
    cases = list(odd_values.each_case(lambda value, each: odd_values.render(value, each, native)))
    names = {name: f"{{{{ params.v{name[1:].partition('_')[0]} }}}}" for name in odd_values.accepted(cases)}
    with a_dag(native, params={f"v{number}": value for number, value in enumerate(odd_values.VALUES)}) as dag:
        trainer = CustomTrainer(training.train, {**names, "out": str(tmp_path / "trainer")})
        TrainJobOperator(task_id="trainer", runtime="python", trainer=trainer)
        decorated = task.trainjob(runtime="python", task_id="decorated")(training.train)
        decorated(**{**names, "out": str(tmp_path / "decorated")})

    run_dag(dag)

    for name in ("trainer", "decorated"):
        assert odd_values.written(tmp_path / name, cases) == odd_values.answers(cases), name


def test_results_of_a_task_keep_their_types(run_dag, training, tmp_path, native):
    cases = list(odd_values.each_case(odd_values.convert))

    @task
    def upstream():
        return {**odd_values.accepted(cases), "out": str(tmp_path / "out")}

    with a_dag(native) as dag:
        TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(training.train), func_args=upstream())

    run_dag(dag)

    assert odd_values.written(tmp_path / "out", cases) == odd_values.answers(cases)


def test_variables_labels_and_annotations_are_texts(run_dag, client, xcom, native):
    def read_environment(names: list) -> dict:
        import os

        return {name: os.environ[name] for name in names}

    texts = {f"V{at}": text for at, text in enumerate(odd_values.TEXTS)}
    rendered = {f"R{at}": f"{{{{ params.v{at} }}}}" for at in range(len(odd_values.TEXTS))}
    answers = {**texts, **{f"R{at}": text for at, text in enumerate(odd_values.TEXTS)}, "NONE": "None"}
    with a_dag(native, params={**{f"v{at}": text for at, text in enumerate(odd_values.TEXTS)}, "none": None}) as dag:
        trainer = CustomTrainer(
            read_environment, {"names": list(answers)}, env={**texts, **rendered, "NONE": "{{ params.none }}"}
        )
        options = [
            Labels({"version": "1.10", "day": "{{ params.v36 }}"}),
            Annotations({"quoted": "'1'", "list": "[1]"}),
        ]
        TrainJobOperator(task_id="train", runtime="python", trainer=trainer, options=options)

    run = run_dag(dag)

    assert xcom(run, "train") == answers
    metadata = client.get_job_request(client.list_jobs()[0].name).policy.metadata
    assert metadata.labels["version"] == "1.10"
    assert metadata.annotations.items() >= {("quoted", "'1'"), ("list", "[1]")}


def test_a_value_that_the_signature_does_not_take_is_refused_before_anything_is_created(run_dag, client, native):
    def train(limit: int | None, day: str = ""):
        return limit

    with a_dag(native, params={"limit": "many"}) as dag:
        trainer = CustomTrainer(train, {"limit": "{{ params.limit }}"})
        TrainJobOperator(task_id="train", runtime="python", trainer=trainer)

    run = run_dag(dag)

    assert str(run.get_task_instance("train").state) == "failed"
    assert client.list_jobs() == []
