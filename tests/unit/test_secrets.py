"""SecretRef: where a secret lies."""

from __future__ import annotations

import pytest

from trainer_core.secrets import SecretRef, secret_from


@pytest.mark.parametrize(("name", "key"), [("hub", "token"), ("team.hub-1", "HF_TOKEN"), ("a", ".netrc")])
def test_a_reference_names_a_secret_and_an_entry(name, key):
    ref = SecretRef(name, key)
    assert (ref.name, ref.key) == (name, key)


@pytest.mark.parametrize("name", ["", "Hub", "a/b", "../a", "a b", "a..b", "a" * 254, None])
def test_a_name_that_no_secret_has_is_refused(name):
    with pytest.raises(ValueError, match="SecretRef name must be the name of a Secret"):
        SecretRef(name, "token")


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "a b", "ä", "a" * 254, None])
def test_a_key_that_no_entry_has_is_refused(key):
    with pytest.raises(ValueError, match="SecretRef key must be an entry of the Secret"):
        SecretRef("hub", key)


def test_a_secret_given_by_mistake_is_not_repeated():
    with pytest.raises(ValueError, match="SecretRef") as refused:
        SecretRef("Hunter2!", "token")
    assert "Hunter2" not in str(refused.value)


@pytest.mark.parametrize("data", [{"name": "hub"}, {"name": "hub", "key": "token", "value": "Hunter2!"}, {}])
def test_a_dict_that_is_no_reference_is_refused_without_its_values(data):
    with pytest.raises(ValueError, match="a secret is given as name and key of its Secret, got") as refused:
        secret_from(data)
    assert "Hunter2" not in str(refused.value)


def test_references_are_compared_by_what_they_name():
    assert SecretRef("hub", "token") == SecretRef("hub", "token")
    assert len({SecretRef("hub", "token"), SecretRef("hub", "token")}) == 1
