"""TrainJobRef: small JSON that finds a job again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core import TrainJobRef

TEXT = st.text(min_size=1, max_size=30)


@given(st.builds(TrainJobRef, backend=TEXT, namespace=TEXT, name=TEXT, uid=TEXT))
def test_a_ref_is_the_same_after_json(ref):
    assert TrainJobRef.from_json(ref.to_json()) == ref
    assert TrainJobRef.from_dict(json.loads(json.dumps(ref.to_dict()))) == ref


@pytest.mark.parametrize("data", [None, [], "ref", {}, {"version": 2}, {"version": 1, "backend": "local"}])
def test_what_is_no_ref_is_refused_with_what_to_pass(data):
    with pytest.raises(ValueError, match="pass what submit returned"):
        TrainJobRef.from_dict(data)


def test_a_ref_names_the_fields_it_lacks():
    with pytest.raises(ValueError, match="lacks name, uid"):
        TrainJobRef.from_dict({"version": 1, "backend": "local", "namespace": "n", "name": ""})


def test_text_that_is_not_json_is_refused():
    with pytest.raises(ValueError, match="not JSON"):
        TrainJobRef.from_json("{")
