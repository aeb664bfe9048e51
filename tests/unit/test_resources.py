"""Resources of a node: names, Kubernetes quantities, and TPU slices."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given, strategies as st

from trainer_core.base import resources

SCALES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(1000),
}
SCALES |= {"M": Fraction(10**6), "G": Fraction(10**9), "Ki": Fraction(2**10), "Gi": Fraction(2**30)}
LARGEST = 2**63 - 1

digits = st.text("0123456789", min_size=1, max_size=9)
numbers = st.one_of(digits, st.builds("{}.{}".format, digits, digits), st.builds("{}.".format, digits))
amounts = st.one_of(
    st.integers(0, 10**6), st.floats(1e-9, 10**6), st.builds("{}{}".format, digits, st.sampled_from([*SCALES]))
)
plain_resources = st.dictionaries(
    st.sampled_from(["cpu", "memory", "storage", "example.com/widget"]), st.integers(0, 10**6), max_size=4
)


@given(number=numbers, suffix=st.sampled_from(["m", "", "k", "M", "G", "Ki", "Gi"]))
def test_a_quantity_with_a_suffix_is_parsed_exactly(number, suffix):
    exact = Fraction(Decimal(number)) * SCALES[suffix]
    assume(exact == 0 or exact >= SCALES["n"])
    assert resources.parse_quantity(number + suffix) == exact


@given(number=digits, exponent=st.integers(-9, 6), letter=st.sampled_from("eE"))
def test_a_quantity_with_an_exponent_is_parsed_exactly(number, exponent, letter):
    assert resources.parse_quantity(f"{number}{letter}{exponent}") == int(number) * Fraction(10) ** exponent


@given(st.integers(0, LARGEST) | st.floats(1e-9, 1e18))
def test_a_number_is_a_quantity(number):
    assert resources.parse_quantity(number) == Fraction(repr(number))


@given(amounts)
def test_the_string_of_a_quantity_has_the_same_value(amount):
    assert resources.parse_quantity(resources.quantity_text(amount)) == resources.parse_quantity(amount)


@given(st.integers(0, LARGEST) | st.floats(1e-9, 1e18))
def test_the_string_of_a_number_has_no_exponent_and_no_trailing_zeros(number):
    text = resources.quantity_text(number)
    assert "e" not in text
    assert not text.endswith((".", ".0"))


@given(st.text(max_size=80))
def test_any_string_is_a_quantity_in_range_or_is_refused(text):
    with contextlib.suppress(ValueError):
        assert 0 <= resources.parse_quantity(text) <= LARGEST


@pytest.mark.parametrize(
    "wrong",
    ["", " ", "ten", "1 Gi", "1GB", "10gb", "1K", "1e", "1e1.5", "--1", "1,5", "٣", "1\n", "0x10", "1" * 65, "inf"],
)
def test_an_invalid_quantity_is_refused_with_examples(wrong):
    with pytest.raises(ValueError, match="is not a quantity; use a number such as"):
        resources.parse_quantity(wrong)


@pytest.mark.parametrize("wrong", [True, float("nan"), float("inf"), None, [1]])
def test_a_value_that_is_not_a_finite_number_is_refused(wrong):
    with pytest.raises(ValueError, match="is not a quantity"):
        resources.parse_quantity(wrong)


@pytest.mark.parametrize("negative", ["-1", -1, "-500m", -0.5])
def test_a_negative_quantity_is_refused(negative):
    with pytest.raises(ValueError, match="negative"):
        resources.parse_quantity(negative)


@pytest.mark.parametrize("large", ["8Ei", "1e99", 2**63, 1e19])
def test_a_quantity_beyond_63_bits_is_refused(large):
    with pytest.raises(ValueError, match="out of range"):
        resources.parse_quantity(large)


@pytest.mark.parametrize("small", [1e-10, "1e-10", "0.5n"])
def test_a_quantity_finer_than_a_billionth_is_refused(small):
    with pytest.raises(ValueError, match="out of range"):
        resources.parse_quantity(small)


@pytest.mark.parametrize("half", [".5", "0.5", "500m", 0.5, "5e-1", "+.5"])
def test_one_half_has_several_spellings(half):
    assert resources.parse_quantity(half) == Fraction(1, 2)


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("GPU", "nvidia.com/gpu"),
        ("CPU", "cpu"),
        ("Memory", "memory"),
        ("storage", "ephemeral-storage"),
        ("ephemeral-storage", "ephemeral-storage"),
        ("mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("MIG-1G.5GB", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("tpu", "google.com/tpu"),
        ("npu", "huawei.com/Ascend910"),
        ("hugepages-2Mi", "hugepages-2Mi"),
        ("example.com/Widget", "example.com/Widget"),
    ],
)
def test_a_resource_has_a_full_name(short, full):
    assert resources.resource_name(short) == full


@pytest.mark.parametrize("unknown", ["gpus", "", "cpu ", "/gpu", "mig-", 3, None, "a b/c"])
def test_an_unknown_resource_is_refused_with_the_known_ones(unknown):
    with pytest.raises(ValueError, match="is unknown; use cpu, memory, storage, gpu"):
        resources.resource_name(unknown)


def test_normalized_resources_have_full_names_and_strings():
    asked = {"gpu": 4, "cpu": 0.5, "memory": "10G", "storage": 100.0}
    assert resources.normalize_resources(asked) == {
        "nvidia.com/gpu": "4",
        "cpu": "0.5",
        "memory": "10G",
        "ephemeral-storage": "100",
    }


@given(plain_resources)
def test_normalizing_is_idempotent(asked):
    once = resources.normalize_resources(asked)
    assert resources.normalize_resources(once) == once


def test_more_than_one_kind_of_mig_slice_is_refused():
    with pytest.raises(ValueError, match="Multiple MIG resource types are not supported"):
        resources.normalize_resources({"mig-1g.5gb": 1, "mig-2g.10gb": 1})


def test_mig_slices_mixed_with_whole_gpus_are_refused():
    with pytest.raises(ValueError, match="cannot be requested together"):
        resources.normalize_resources({"mig-1g.5gb": 1, "gpu": 1})


def test_one_resource_under_two_names_is_refused():
    with pytest.raises(ValueError, match=r"nvidia\.com/gpu twice, as 'gpu' and 'nvidia\.com/gpu'"):
        resources.normalize_resources({"gpu": 1, "nvidia.com/gpu": 2})


@pytest.mark.parametrize("fraction", [0.5, "500m", "1.5"])
def test_a_fraction_of_a_device_is_refused(fraction):
    with pytest.raises(ValueError, match=r"resource 'gpu': .* is a fraction of a device"):
        resources.normalize_resources({"gpu": fraction})


@pytest.mark.parametrize("name", ["memory", "storage"])
def test_milli_bytes_are_refused_because_they_are_usually_a_typing_mistake(name):
    with pytest.raises(ValueError, match="for megabytes use 'M' or 'Mi'"):
        resources.normalize_resources({name: "512m"})


@pytest.mark.parametrize("amount", [1, 32, "512", 0.5, "1023Ki"])
@pytest.mark.parametrize("name", ["memory", "storage"])
def test_an_amount_of_memory_without_a_unit_is_refused(name, amount):
    with pytest.raises(ValueError, match=rf"^resource '{name}': .* is less than 1Mi; write the unit, such as '32Gi'$"):
        resources.check_resources("resources_per_node", {name: amount})


def test_an_invalid_quantity_is_reported_with_its_resource():
    with pytest.raises(ValueError, match="resource 'memory': '10GB' is not a quantity"):
        resources.normalize_resources({"memory": "10GB"})


@pytest.mark.parametrize("value", [None, [1], {"limits": 1}])
def test_a_quantity_of_another_type_is_refused(value):
    with pytest.raises(ValueError, match=r"resource 'cpu': a .* is not a quantity"):
        resources.normalize_resources({"cpu": value})


def test_a_templated_quantity_passes_the_check_but_not_normalization():
    asked = {"cpu": "{{ params.cpu }}"}
    resources.check_resources("resources_per_node", asked)
    with pytest.raises(ValueError, match="is not a quantity"):
        resources.normalize_resources(asked)


@pytest.mark.parametrize("wrong", ["cpu", [("cpu", 1)], 4])
def test_resources_that_are_not_a_dict_are_refused(wrong):
    with pytest.raises(ValueError, match="resources_per_node must be a dict such as"):
        resources.check_resources("resources_per_node", wrong)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"cpu": 4, "gpu": 2}, ("gpu", "2")),
        ({"tpu": 4}, ("tpu", "4")),
        ({"npu": "8"}, ("npu", "8")),
        ({"mig-1g.5gb": 1, "cpu": 1}, ("mig-1g.5gb", "1")),
        ({"cpu": "500m", "memory": "1Gi"}, ("cpu", "500m")),
        ({"memory": "1Gi"}, None),
    ],
)
def test_the_device_of_a_node_is_its_accelerator_else_its_cpu(asked, found):
    assert resources.detect_device(asked) == found


@pytest.mark.parametrize(
    ("arguments", "nodes"),
    [
        ({"num_slices": 1, "topology": "2x4"}, 2),
        ({"num_slices": 3, "topology": "4x4x4"}, 48),
        ({"num_slices": 2, "topology": "1x1"}, 2),
        ({"num_slices": 1, "topology": "2X4", "chips_per_host": 8}, 1),
    ],
)
def test_a_tpu_job_has_a_node_for_each_host_of_each_slice(arguments, nodes):
    assert resources.get_tpu_num_nodes(**arguments) == nodes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_slices": 0, "topology": "2x4"}, "num_slices must be positive, got: 0"),
        ({"num_slices": 1, "topology": ""}, "TPU topology must be specified."),
        ({"num_slices": 1, "topology": "a"}, "Invalid topology format: 'a'. Must be formatted as 'AxB' or 'AxBxC'"),
        ({"num_slices": 1, "topology": "2x2x2x2"}, "Must contain exactly 2 or 3 dimensions"),
        ({"num_slices": 1, "topology": "0x4"}, "TPU topology dimensions must be positive, got: '0x4'"),
        ({"num_slices": 1, "topology": "3x3"}, r"Total TPU chips in slice \(9\) must be cleanly divisible"),
        ({"num_slices": 1, "topology": "2x4", "chips_per_host": 0}, "chips_per_host must be positive, got: 0"),
    ],
)
def test_an_invalid_tpu_slice_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        resources.get_tpu_num_nodes(**arguments)
