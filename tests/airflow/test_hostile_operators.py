"""Whatever a DAG gives an operator, the DAG file gets an operator or a ValueError of one short line."""

from __future__ import annotations

import inspect

import pytest
from hostile_values import BOMB, HOSTILE, SELF_CONTAINING, build_plain_data
from hypothesis import given, strategies as st

from airflow_provider.operators.manage import (
    DeleteTrainJobOperator,
    ResumeTrainJobOperator,
    SuspendTrainJobOperator,
)
from airflow_provider.operators.promote import PromoteModelOperator
from airflow_provider.operators.runtimes import CreateRuntimeOperator, DeleteRuntimeOperator
from airflow_provider.operators.trainjob import InitializeOperator, TrainJobOperator
from airflow_provider.sensors.trainjob import TrainJobSensor
from trainer_core.base.text import MAX_MESSAGE

OPERATORS = [
    *(TrainJobOperator, InitializeOperator, TrainJobSensor, PromoteModelOperator),
    *(DeleteTrainJobOperator, SuspendTrainJobOperator, ResumeTrainJobOperator),
    *(CreateRuntimeOperator, DeleteRuntimeOperator),
]
#: Arguments of every operator of Airflow; checked by Airflow.
AIRFLOWS = {"self", "kwargs", "deferrable", "wait_for_completion", "fail_fast"}
TEXTS = st.sampled_from(
    [
        *("", " ", "\0", "\x1b[31m", "a\nb", "{", "{{ x }}", "x" * 2000, "hf://a/b", "cache://a/b", "a:b", "9" * 5000),
        *("[" * 3000, "local", "kubernetes", "d: 2020-13-45", "kind: ClusterTrainingRuntime", "- QueueName: nightly"),
    ]
)
VALUES = st.one_of(
    build_plain_data(TEXTS),
    st.sampled_from([SELF_CONTAINING, BOMB, {1: 2}, {"dataset": "cache://a/b"}, {"func": "a:b", "func_args": BOMB}]),
    st.builds(object),
)


def assert_is_one_short_line(text: str) -> None:
    assert text.strip()
    assert len(text) <= MAX_MESSAGE, text
    assert text.isprintable(), repr(text)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
@HOSTILE
@given(data=st.data())
def test_an_operator_is_made_or_refused_in_one_line(operator, data):
    parameters = [
        each
        for kind in operator.__mro__
        if kind.__module__.startswith("airflow_provider") and "__init__" in vars(kind)
        for each in inspect.signature(kind.__init__).parameters.values()
        if each.name not in AIRFLOWS and each.kind is each.KEYWORD_ONLY
    ]
    required = {each.name for each in parameters if each.default is each.empty}
    names = required | data.draw(st.sets(st.sampled_from([each.name for each in parameters]), max_size=3))
    try:
        operator(task_id="x", **{name: data.draw(VALUES) for name in sorted(names)})
    except ValueError as error:
        message = str(error)
    else:
        message = "made"

    assert_is_one_short_line(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"initializer": "hf://a/b"},
            "initializer must be an Initializer or a dict of URIs such as {'dataset': 'hf://",
        ),
        ({"initializer": {"dataset": "cache://a/b"}}, "DataCacheInitializer needs metadata_loc, num_data_nodes"),
        ({"backend": {}}, "backend must be the name of a backend"),
        (
            {"trainer": f"func: a:b\nnum_nodes: {'1' * 5000}"},
            "trainer is not valid YAML: line 2: num_nodes: '1111",
        ),
        ({"trainer": "func: " + "[" * 3000}, "trainer is not valid YAML: line 1: nested more than 100 levels deep"),
        ({"trainer": {"func": "a:b", "func_args": {"x": BOMB}}}, "trainer has more than 100000 values"),
    ],
)
def test_the_message_of_an_operator_says_what_to_do(fields, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is compared below
        TrainJobOperator(task_id="x", **fields)

    assert message in str(refused.value)
    assert_is_one_short_line(str(refused.value))


def test_an_operator_does_not_let_airflow_walk_through_a_registry():
    with pytest.raises(ValueError, match="registry must be a string"):
        PromoteModelOperator(task_id="x", job="x", model="x", metric="x", registry=BOMB)
