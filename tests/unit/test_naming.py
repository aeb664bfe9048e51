"""Names of TrainJobs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from trainer_core.base import naming

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@given(slug=st.text(max_size=80), owner=st.text(min_size=1, max_size=80), attempt=st.integers(0, 10_000))
def test_every_derived_name_is_a_label_with_room_for_its_children(slug, owner, attempt):
    name = naming.build_job_name(slug, owner, attempt)

    assert LABEL.fullmatch(name)
    assert len(f"{name}-dataset-initializer-0-0-xxxxx") <= 63
    assert naming.validate_name(name) == name


@given(owner=st.text(min_size=1), other=st.text(min_size=1), slug=st.text())
def test_names_differ_exactly_when_owners_differ(owner, other, slug):
    assert (naming.build_job_name(slug, owner) == naming.build_job_name(slug, other)) == (owner == other)


def test_a_name_has_slug_digest_and_attempt():
    assert re.fullmatch(r"train-model-[0-9a-f]{10}", naming.build_job_name("Train Model!", "dag/run/task"))
    assert re.fullmatch(r"train-model-[0-9a-f]{10}-3", naming.build_job_name("Train Model!", "dag/run/task", 3))


def test_a_long_slug_is_cut_so_that_the_name_has_33_characters_with_digest_and_attempt():
    assert re.fullmatch(r"x{20}-[0-9a-f]{10}-7", naming.build_job_name("x" * 40, "owner", 7))
    assert re.fullmatch(r"x{22}-[0-9a-f]{10}", naming.generate_name("x" * 40))
    assert naming.build_attempt_name("x" * 30 + "-yy", 12) == "x" * 30 + "-12"


def test_labels_of_owners_differ_with_their_keys():
    assert naming.hash_owner_key("a") != naming.hash_owner_key("b")
    assert re.fullmatch("[0-9a-f]{40}", naming.hash_owner_key("a"))


@pytest.mark.parametrize(
    ("value", "is_namespace", "is_object_name"),
    [("team-1", True, True), ("a.b", False, True), ("1a", True, True), ("A", False, False), ("a" * 64, False, True)],
)
def test_a_namespace_is_a_label_and_the_name_of_an_object_can_have_dots(value, is_namespace, is_object_name):
    assert (naming.is_namespace(value), naming.is_object_name(value)) == (is_namespace, is_object_name)


def test_a_slug_without_a_letter_becomes_job():
    assert naming.build_job_name("42", "owner").startswith("job-")


def test_random_names_are_labels_and_differ():
    names = {naming.generate_name() for _ in range(100)}

    assert len(names) == 100
    assert all(LABEL.fullmatch(name) and len(name) == 12 for name in names)


@pytest.mark.parametrize("name", ["", "A", "a/b", "a.b", "-a", "a-", "1a", "a b", "a\n", "../x", "a" * 34, None, 3])
def test_a_name_that_is_not_a_label_is_refused(name):
    with pytest.raises(ValueError, match="job name"):
        naming.validate_name(name)


def test_an_empty_owner_and_a_negative_attempt_are_refused():
    with pytest.raises(ValueError, match="owner"):
        naming.build_job_name("a", "")
    with pytest.raises(ValueError, match="attempt"):
        naming.build_job_name("a", "owner", -1)


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        (naming.build_job_name("train", "a"), 0),
        (naming.build_job_name("train", "a", 12), 12),
        (naming.build_job_name("train", "another", 1), None),
        ("nightly-1", None),
        ("train-" + "9" * 5000, None),
    ],
)
def test_the_attempt_of_a_name_is_found(name, attempt):
    assert naming.find_attempt("train", "a", name) == attempt


_KEYS = st.text(min_size=1, max_size=60) | st.from_regex(r"\A[a-z0-9-]{1,60}\Z")


@given(key=_KEYS)
def test_the_slug_of_a_partition_is_a_label_and_with_champion_an_alias(key):
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", naming.build_partition_slug(key))
    assert len(f"champion-{naming.build_partition_slug(key)}") <= 63


@given(key=_KEYS, other=_KEYS)
def test_slugs_of_partitions_differ_exactly_when_keys_differ(key, other):
    assert (naming.build_partition_slug(key) == naming.build_partition_slug(other)) == (key == other)
    # The slug of one key, with its hash, can be another key.
    taken = naming.build_partition_slug(key)
    assert taken == key or naming.build_partition_slug(taken) != taken


@pytest.mark.parametrize("key", ["emea", "2026-11-24", "20261124", "a"])
def test_a_partition_whose_key_is_a_label_has_no_hash(key):
    assert naming.build_partition_slug(key) == key
