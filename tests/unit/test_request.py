"""TrainJobRequest: frozen, JSON both ways, and validated after rendering."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from trainer_core.base.errors import InvalidRequestError
from trainer_core.model.request import PART_OF_FIELD, TrainJobRequest

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20).filter(
    str.strip
)
KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,10}", fullmatch=True)
SECRETS = st.fixed_dictionaries({"name": NAMES, "key": KEYS})
TRAINERS = st.fixed_dictionaries(
    {"kind": st.just("container"), "image": st.from_regex(r"[a-z]{1,8}(:[a-z0-9]{1,4})?", fullmatch=True)},
    optional={
        "num_nodes": st.integers(1, 100),
        "num_proc_per_node": st.integers(1, 8),
        "env": st.dictionaries(KEYS, TEXTS | SECRETS, max_size=3),
        "args": st.lists(TEXTS, max_size=3),
        "resources_per_node": st.sampled_from([{"gpu": 2}, {"cpu": "500m", "memory": "4Gi"}, {"mig-1g.5gb": 1}]),
    },
)
SOURCES = st.fixed_dictionaries(
    {"storage_uri": st.just("file:///data")},
    optional={"ignore_patterns": st.lists(TEXTS, max_size=3), "link": st.booleans()},
)
REQUESTS = st.fixed_dictionaries(
    {"name": NAMES, "trainer": TRAINERS},
    optional={
        "runtime": st.fixed_dictionaries({"name": NAMES}),
        "owner": st.fixed_dictionaries({"key": TEXTS, "slug": TEXTS, "generation": TEXTS}),
        "initializer": st.fixed_dictionaries({"dataset": SOURCES}),
        "metadata": st.fixed_dictionaries({"labels": st.dictionaries(KEYS, KEYS, max_size=2)}),
        "active_deadline_seconds": st.integers(1, 10**6),
        "suspend": st.booleans(),
        "managed_by": st.just("kueue.x-k8s.io/multikueue"),
        "delete_after_seconds": st.integers(1, 10**6),
        "workspace": st.fixed_dictionaries({}, optional={"claim": NAMES, "size": st.just("1Ti")}),
    },
).map(TrainJobRequest.parse)


def a_request(**fields) -> TrainJobRequest:
    return TrainJobRequest.parse({"name": "job", "trainer": {"kind": "container", "image": "x:1"}, **fields})


def a_request_from(origin):
    """Return a request for a function that begins at this line of a file."""
    trainer = code({}, {})
    return a_request(trainer={**trainer, "code": {**trainer["code"], **({"origin": origin} if origin else {})}})


def code(args, types):
    return {
        "kind": "custom",
        "code": {"kind": "source", "text": "def f(): pass", "entry": "f", "args": args, "types": types},
    }


@given(REQUESTS)
def test_a_request_is_the_same_after_json(request):
    again = TrainJobRequest.from_json(request.to_json())

    assert again == request
    assert again.to_json() == request.to_json()
    assert again.fingerprint() == request.fingerprint()


@given(REQUESTS, NAMES)
def test_the_fingerprint_depends_neither_on_name_nor_owner(request, name):
    assert request.with_name(name).fingerprint() == request.fingerprint()
    assert request.with_fields(owner=None).fingerprint() == request.fingerprint()


def test_the_fingerprint_depends_on_the_code_and_not_on_its_line():
    first, moved, unknown = (a_request_from(origin) for origin in ("train.py:3", "training.py:33", None))
    assert first.fingerprint() == moved.fingerprint() == unknown.fingerprint()
    assert first.list_differences(moved) == first.list_differences(unknown) == []
    assert TrainJobRequest.from_json(first.to_json()).work.trainer.code.origin == "train.py:3"
    assert "origin" not in unknown.to_json()


@pytest.mark.parametrize("origin", ["../train.py:3", "train.py", "train.py:0", "train.sh:1", "a/b.py:1"])
def test_an_origin_that_is_no_file_and_line_is_refused(origin):
    with pytest.raises(InvalidRequestError, match=r"code\.origin: "):
        a_request_from(origin)


def test_different_work_has_another_fingerprint_and_the_differing_fields_are_listed():
    one, other = a_request(), a_request(trainer={"kind": "container", "image": "x:2", "num_nodes": 2})

    assert one.fingerprint() != other.fingerprint()
    assert one.list_differences(other) == ["trainer.image", "trainer.num_nodes"]


@pytest.mark.parametrize(
    ("defaults", "fingerprint"),
    [
        (None, "0b9d30494aafcce3ff80a0e0ed4ef911feeb112382421245673f0df7e480e860"),
        (["more_memory", "stalled"], "b10a0f107b71f73c9a67e9fc019938cc2cc3122de099a0653778ceb37d791540"),
    ],
)
def test_a_stored_request_with_each_field_keeps_its_fingerprint(defaults, fingerprint):
    stored = json.loads((Path(__file__).parent / "data/stored_request.json").read_text())
    request = TrainJobRequest.parse({**stored, "defaults": defaults})

    assert request.fingerprint() == fingerprint
    known = PART_OF_FIELD.keys() - {"extensions", "attempt_restarts"} | {"version", "pytorch_job"}
    assert stored.keys() | {"defaults", "literal_secrets"} == known


def test_unknown_fields_are_refused_by_name_also_those_with_the_name_of_a_part():
    with pytest.raises(InvalidRequestError, match=r"^work: Extra inputs are not permitted; x: Extra"):
        TrainJobRequest.parse({"work": {"trainer": {"kind": "container", "image": "x"}}, "x": 1})


def test_the_fingerprint_of_a_request_of_an_earlier_release_is_unchanged():
    # Jobs of an earlier version are found by it.
    text = '{"metadata":{"annotations":{},"labels":{}},"name":"job","patches":[],"suspend":false,"trainer":'
    text += '{"env":{"A":"b"},"image":"x:1","kind":"container","packages":[],"pip_index_urls":[]},"version":1}'

    assert a_request(trainer={"kind": "container", "image": "x:1", "env": {"A": "b"}}).to_json() == text


def test_an_invalid_environment_variable_is_reported_once():
    with pytest.raises(InvalidRequestError) as raised:
        a_request(trainer={"kind": "container", "image": "x:1", "env": {"A": ["b"]}})
    assert str(raised.value) == "trainer.env.A: must be a string, or name and key of a Secret, got list"


def test_a_request_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        a_request().context.name = "other"


def test_rendered_strings_become_the_types_that_the_function_declares():
    trainer = code({"epochs": "3", "rate": "0.1", "fast": "true"}, {"epochs": "int", "rate": "float", "fast": "bool"})
    request = a_request(trainer={**trainer, "num_nodes": "2"})

    assert request.work.trainer.code.args == {"epochs": 3, "rate": 0.1, "fast": True}
    assert request.work.trainer.num_nodes == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"trainer": {"kind": "container", "image": "x", "num_nodes": -1}},
            r"trainer.num_nodes: .*greater than 0, got -1",
        ),
        ({"trainer": {"kind": "container"}}, "a container trainer needs its image, command or args"),
        ({"trainer": code({"epochs": "many"}, {"epochs": "int"})}, "epochs.*many"),
        ({"name": "a/b"}, "name: job name 'a/b' is not a DNS label"),
        ({"runtme": {"name": "x"}}, "runtme: "),
        ({"active_deadline_seconds": 0}, "active_deadline_seconds"),
        ({"initializer": {"dataset": {"storage_uri": "data"}}}, "initializer.dataset.storage_uri"),
        (
            {"trainer": {**code({}, {}), "result_uri": "s3://bucket/r.json"}},
            "result_uri must be an absolute path",
        ),
        ({"version": 2}, "version"),
    ],
)
def test_an_invalid_value_is_reported_in_one_line_with_its_path(fields, message):
    with pytest.raises(InvalidRequestError, match=message) as raised:
        a_request(**fields)

    assert "\n" not in str(raised.value)


CONTAINER = {"kind": "container", "image": "x"}


@pytest.mark.parametrize(
    "fields",
    [
        {"trainer": {**CONTAINER, "env": {"TOKEN": 20261122}}},
        {"trainer": {**CONTAINER, "env": {"TOKEN": "20261122"}, "packages": ["-r x"]}},
        {"trainer": {"kind": "container", "env": {"TOKEN": "20261122"}}},
        {"initializer": {"dataset": {"storage_uri": "s3://data", "secrets": {"ACCESS_TOKEN": "20261122"}}}},
        {"initializer": {"dataset": {"storage_uri": "s3://data", "acess_token": "20261122"}}},
        {"runai": {"spec": {"environment": {"TOKEN": "20261122"}, "gpu": 1, "gpu_memory": "8G"}}},
    ],
)
def test_no_message_and_no_traceback_contains_a_value_that_may_be_secret(fields):
    with pytest.raises(InvalidRequestError) as raised:
        a_request(**fields)

    assert "20261122" not in "".join(traceback.format_exception(raised.value))


def test_no_text_form_of_a_request_contains_a_literal_secret():
    request = a_request(literal_secrets={"dataset.ACCESS_TOKEN": "hf_topsecret"})

    assert request.context.literal_secrets["dataset.ACCESS_TOKEN"].get_secret_value() == "hf_topsecret"
    assert all("hf_topsecret" not in text for text in (request.to_json(), repr(request), str(request)))
    assert request.fingerprint() == a_request().fingerprint()


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"labels": {"team": "bad label!"}}},
        {"metadata": {"annotations": {"bad key!": "x"}}},
        {"trainer": {"kind": "container", "image": "x", "env": {"NOT=A": "name"}}},
        {"trainer": {"kind": "container", "image": "x", "env": {"A": {"name": "Not a name", "key": "k"}}}},
        {"managed_by": "me"},
        {"delete_after_seconds": 0},
        {"workspace": {"claim": "Not a name"}},
        {"workspace": {"size": "0"}},
        {"workspace": {"size": "much"}},
        {"workspace": {"access_mode": "ReadOnlyMany"}},
        {"trainer": {**code({}, {}), "packages": ["--index-url=http://evil"]}},
        {"trainer": {**code({}, {}), "pip_index_urls": ["not a url"]}},
    ],
)
def test_a_rendered_value_is_validated_like_a_constant(fields):
    with pytest.raises(InvalidRequestError):
        a_request(**fields)
