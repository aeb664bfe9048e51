"""RunaiSpec and RunaiMasterSpec: fields of a workload as options, in Python and as plain data."""

from __future__ import annotations

import pytest

from trainer_core import CustomTrainerContainer, RunaiMasterSpec, RunaiSpec, SecretRef, TrainingWorkloadSpec
from trainer_core.backends.debug import DebugBackend
from trainer_core.base.errors import InvalidRequestError
from trainer_core.definition import request_builder
from trainer_core.model.request import TrainJobRequest


class AnyBackend:
    """A backend that accepts these options."""

    accepts = frozenset({"RunaiSpec", "RunaiMasterSpec"})


def build_fields(*options, backend=AnyBackend):
    return request_builder.build_request_data(
        backend=backend, trainer=CustomTrainerContainer(image="ubuntu"), options=options
    )["runai"]


def test_fields_are_given_as_keywords():
    assert build_fields(RunaiSpec(gpu=0.5, node_pools=["a100", "default"])) == {
        "spec": {"gpu": "0.5", "node_pools": "a100 default"}
    }


def test_fields_are_given_as_a_model():
    assert build_fields(RunaiSpec(TrainingWorkloadSpec(gpu=1))) == {"spec": {"gpu": "1"}}


def test_fields_are_given_as_plain_data_by_upstream_names():
    assert build_fields({"RunaiSpec": {"nodePools": "a100"}}, {"RunaiMasterSpec": {"gpu": 0}}) == {
        "spec": {"node_pools": "a100"},
        "master": {"gpu": "0"},
    }


def test_the_last_option_wins_and_items_are_merged():
    first = RunaiSpec(gpu=1, environment={"A": "1", "B": "2"})
    last = RunaiSpec(gpu=2, environment={"B": SecretRef("s", "b")})
    assert build_fields(first, last) == {
        "spec": {"gpu": "2", "environment": {"A": "1", "B": {"name": "s", "key": "b"}}},
    }


def test_a_template_is_accepted_for_a_field():
    fields = build_fields(RunaiSpec(backoff_limit="{{ params.tries }}", runAsUid="{{ uid }}", run_as_user=True))
    assert fields == {"spec": {"run_as_user": True, "backoff_limit": "{{ params.tries }}", "run_as_uid": "{{ uid }}"}}


def test_a_rendered_field_is_validated_with_the_request():
    data = {"trainer": {"kind": "container", "image": "ubuntu"}, "runai": {"spec": {"backoff_limit": "3"}}}
    assert TrainJobRequest.parse(data).work.extensions["runai"].spec == {"backoff_limit": 3}
    with pytest.raises(InvalidRequestError, match=r"runai\.spec: .*backoff_limit"):
        TrainJobRequest.parse({**data, "runai": {"spec": {"backoff_limit": "many"}}})


@pytest.mark.parametrize(
    ("field", "value", "alternative"),
    [
        ("name", "x", "the option Name"),
        ("name_prefix", "x", "the option Name"),
        ("active", False, "the option Suspend"),
        ("usage", "Template", "create_template"),
    ],
)
def test_fields_that_another_option_sets_are_refused(field, value, alternative):
    with pytest.raises(ValueError, match=alternative):
        RunaiSpec(**{field: value})


def test_an_invalid_field_next_to_a_templated_one_is_refused_at_once():
    with pytest.raises(ValueError, match="not a quantity"):
        RunaiSpec(gpu="lots", backoff_limit="{{ params.tries }}")


def test_another_backend_refuses_the_option():
    with pytest.raises(ValueError, match=r"not compatible with DebugBackend\. Supported backends: RunaiBackend"):
        build_fields(RunaiMasterSpec(gpu=0), backend=DebugBackend)
