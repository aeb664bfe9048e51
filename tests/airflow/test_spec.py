"""Requests that operators build, and errors that they raise, when a DAG is parsed."""

from __future__ import annotations

import datetime
import json

import pytest
from airflow.sdk import DAG
from airflow_fakes import double

from airflow_provider import spec
from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from airflow_provider.testing.compat import DagSerialization
from trainer_core import (
    CustomTrainer,
    CustomTrainerContainer,
    DebugBackendConfig,
    HuggingFaceDatasetInitializer,
    Initializer,
    Labels,
    RuntimePatch,
    SecretRef,
    TrainJobRef,
)
from trainer_core.definition import request_builder


def an_operator(**arguments):
    return TrainJobOperator(**{"task_id": "train", "trainer": CustomTrainer(double, {"number": 1}), **arguments})


def test_the_request_is_plain_json_in_a_template_field():
    operator = an_operator(
        runtime="python",
        options=[Labels({"team": "vision"})],
        initializer=Initializer(
            dataset=HuggingFaceDatasetInitializer("hf://a/b", access_token=SecretRef("hf", "token"))
        ),
    )
    assert operator.template_fields == ("spec", "func_args")
    assert json.loads(json.dumps(operator.spec)) == operator.spec
    assert operator.spec["metadata"] == {"labels": {"team": "vision"}}


def test_the_source_is_not_templated_and_its_digest_is_shown():
    operator = an_operator()
    assert "text" not in operator.spec["trainer"]["code"]
    assert operator.spec["trainer"]["code"]["digest"]
    assert "def double" in operator.code_text


@pytest.mark.parametrize(
    "trainer",
    [
        CustomTrainer(func="package.training:train", func_args={"epochs": "{{ params.epochs }}"}, num_nodes=2),
        {"func": "package.training:train", "func_args": {"epochs": "{{ params.epochs }}"}, "num_nodes": 2},
        "func: package.training:train\nfunc_args: {epochs: '{{ params.epochs }}'}\nnum_nodes: 2",
    ],
)
def test_a_trainer_as_object_dict_or_yaml_gives_the_same_request(trainer):
    expected = an_operator(
        trainer=CustomTrainer("package.training:train", {"epochs": "{{ params.epochs }}"}, num_nodes=2)
    )
    assert an_operator(trainer=trainer).spec == expected.spec


def closure():
    local = 3

    def train():
        return local

    return train


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": [RuntimePatch()], "backend": "local"}, "RuntimePatch"),
        ({"trainer": {"image": "a", "num_nodes": -1}}, "num_nodes must be a whole number of at least 1, got -1"),
        ({"trainer": {"func": "a:b", "nodes": 1}}, "unknown field nodes of CustomTrainer"),
        ({"trainer": "- a\n- b"}, "must be YAML of a mapping"),
        (
            {"trainer": "func: a:b\nfunc_args: {epochs: {{ params.epochs }}}"},
            "put templates such as '{{ ds }}' in quotes",
        ),
        ({"trainer": CustomTrainer(double, {"numbr": 1})}, "double has no parameter numbr; its parameters are number"),
        ({"backend": "nowhere"}, "unknown backend 'nowhere'; known are"),
        ({"on_kill": "perhaps"}, "on_kill must be one of cancel, keep; got 'perhaps'"),
        (
            {"initializer": Initializer(dataset=HuggingFaceDatasetInitializer("hf://a/b", access_token="hf_x"))},
            "give SecretRef",
        ),
    ],
)
def test_an_invalid_argument_is_refused_when_the_dag_is_parsed(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        an_operator(**arguments)
    assert "\n" not in str(caught.value)
    assert "hf_x" not in str(caught.value)


def test_a_function_that_cannot_be_packaged_is_refused_when_the_dag_is_parsed():
    with pytest.raises(ValueError, match="local"):
        an_operator(trainer=CustomTrainer(closure()))


def test_options_are_checked_for_the_backend_of_the_configuration():
    assert an_operator(backend_config=DebugBackendConfig(), options=[Labels({"a": "b"})]).spec["metadata"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initializer": None}, "initializer is empty"),
        ({"initializer": Initializer()}, "initializer is empty"),
        ({"initializer": Initializer(), "trainer": CustomTrainerContainer("a")}, "does not accept runtime or trainer"),
    ],
)
def test_the_initialize_operator_needs_an_initializer_and_no_trainer(arguments, message):
    with pytest.raises(ValueError, match=message):
        InitializeOperator(task_id="fetch", **arguments)


def test_a_dag_with_all_operators_can_be_serialized():
    with DAG(
        "serialized", schedule=None, start_date=datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    ) as dag:
        train = an_operator(runtime="python", deferrable=True, on_kill="keep", wait_for_completion=False)
        TrainJobSensor(task_id="wait", job=train.output)
        TrainJobSensor(task_id="wait_known", job=TrainJobRef("local", "/home", "a-job", "uid"))
        TrainJobOperator.partial(task_id="mapped", runtime="python").expand(trainer=[{"func": "a:b"}, {"image": "c"}])
    data = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    back = DagSerialization.from_dict(data)
    assert back.get_task("train").task_type == "TrainJobOperator"
    assert back.get_task("train").spec == train.spec
    assert back.get_task("wait").upstream_task_ids == {"train"}
    assert back.get_task("wait_known").job["name"] == "a-job"


def test_parsing_a_dag_twice_gives_the_same_request():
    assert an_operator().spec == an_operator().spec


def test_the_line_of_a_function_is_in_the_request_and_not_in_the_template_field():
    def train():
        pass

    data = request_builder.build_request_data(backend=None, trainer=CustomTrainer(func=train))
    field, content = spec.split_code(data)
    assert "origin" not in field["trainer"]["code"]
    assert spec.join_code(field, content)["trainer"]["code"]["origin"].startswith("test_spec.py:")
