"""RunaiSpec and RunaiMasterSpec: fields of a workload as an option, in Python and as plain data."""

from __future__ import annotations

import pytest

from trainer_core import CustomTrainerContainer, RunaiMasterSpec, RunaiSpec, SecretRef, TrainingWorkloadSpec, build
from trainer_core.backends.debug.backend import DebugBackend
from trainer_core.errors import InvalidRequestError
from trainer_core.request import TrainJobRequest


class AnyBackend:
    """Stands for a backend that takes these options."""

    accepts = frozenset({"RunaiSpec", "RunaiMasterSpec"})


def plain(*options, backend=AnyBackend):
    return build.plain(backend=backend, trainer=CustomTrainerContainer(image="ubuntu"), options=options)["runai"]


def test_fields_are_given_as_keywords():
    assert plain(RunaiSpec(gpu=0.5, node_pools=["a100", "default"])) == {
        "spec": {"gpu": "0.5", "node_pools": "a100 default"}
    }


def test_fields_are_given_as_a_model():
    assert plain(RunaiSpec(TrainingWorkloadSpec(gpu=1))) == {"spec": {"gpu": "1"}}


def test_fields_are_given_as_plain_data_by_runais_names():
    assert plain({"RunaiSpec": {"nodePools": "a100"}}, {"RunaiMasterSpec": {"gpu": 0}}) == {
        "spec": {"node_pools": "a100"},
        "master": {"gpu": "0"},
    }


def test_of_several_options_the_last_counts_and_items_add_up():
    first = RunaiSpec(gpu=1, environment={"A": "1", "B": "2"})
    last = RunaiSpec(gpu=2, environment={"B": SecretRef("s", "b")})
    assert plain(first, last) == {
        "spec": {"gpu": "2", "environment": {"A": "1", "B": {"name": "s", "key": "b"}}},
    }


def test_what_is_yet_to_be_filled_in_waits():
    said = plain(RunaiSpec(backoff_limit="{{ params.tries }}", runAsUid="{{ uid }}", run_as_user=True))
    assert said == {"spec": {"run_as_user": True, "backoff_limit": "{{ params.tries }}", "run_as_uid": "{{ uid }}"}}


def test_what_was_filled_in_is_judged_with_the_request():
    data = {"trainer": {"kind": "container", "image": "ubuntu"}, "runai": {"spec": {"backoff_limit": "3"}}}
    assert TrainJobRequest.parse(data).runai.spec == {"backoff_limit": 3}
    with pytest.raises(InvalidRequestError, match=r"runai\.spec: .*backoff_limit"):
        TrainJobRequest.parse({**data, "runai": {"spec": {"backoff_limit": "many"}}})


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("name", "x", "the option Name"),
        ("name_prefix", "x", "the option Name"),
        ("active", False, "the option Suspend"),
        ("usage", "Template", "create_template"),
    ],
)
def test_fields_for_which_every_request_has_a_word_are_refused(field, value, remedy):
    with pytest.raises(ValueError, match=remedy):
        RunaiSpec(**{field: value})


def test_a_field_that_cannot_be_right_is_refused_at_once_beside_one_to_be_filled_in():
    with pytest.raises(ValueError, match="not a quantity"):
        RunaiSpec(gpu="lots", backoff_limit="{{ params.tries }}")


def test_a_backend_that_is_not_of_runai_refuses_it():
    with pytest.raises(ValueError, match=r"not compatible with DebugBackend\. Supported backends: RunaiBackend"):
        plain(RunaiMasterSpec(gpu=0), backend=DebugBackend)
