"""Resources of a node: names and Kubernetes quantities.

Names may be short (``gpu``, ``storage``, ``mig-1g.5gb``, ``tpu``, ``npu``). A normalized mapping has full names and
quantities as strings, so that manifests copy it unchanged and equal resources compare equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from trainer_core.base import validation
from trainer_core.base.errors import UnsupportedError
from trainer_core.base.secrets import redact
from trainer_core.base.text import shorten

#: Processes of all nodes. Each takes tens of megabytes before the training starts.
MAX_PROCESSES = 1000

GPU = "nvidia.com/gpu"
_MIG_PREFIX = "nvidia.com/mig-"
_ALIASES = {"gpu": GPU, "storage": "ephemeral-storage", "tpu": "google.com/tpu", "npu": "huawei.com/Ascend910"}
_BYTES = ("memory", "ephemeral-storage")
_PLAIN = ("cpu", *_BYTES)
_KNOWN = "cpu, memory, storage, gpu, mig-<profile>, tpu, npu, hugepages-<size> or a full name like example.com/device"
_FULL_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DEVICES = {GPU: "gpu", "google.com/tpu": "tpu", "huawei.com/Ascend910": "npu"}

_SUFFIXES: dict[str, Fraction] = {
    **{suffix: Fraction(10) ** power for suffix, power in zip(("n", "u", "m", ""), (-9, -6, -3, 0), strict=True)},
    **{suffix: Fraction(10) ** (3 * (power + 1)) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Fraction(2) ** (10 * (power + 1)) for power, suffix in enumerate("KMGTPE")},
}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(?P<suffix>n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)"
    r"|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)
#: Kubernetes stores quantities in 63 bits.
_MAX_VALUE = 2**63 - 1
#: Longer strings are not parsed.
_MAX_TEXT = 64


def parse_quantity(quantity: str | int | float) -> Fraction:
    """Parse a Kubernetes quantity exactly: ``"500m"`` is one half, ``"1Ki"`` is 1024, ``2`` is two.

    Args:
        quantity: Digits with an optional suffix (n u m k M G T P E, Ki Mi Gi Ti Pi Ei) or exponent, or a number. See
            [Quantity](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).

    Returns:
        The amount in the unit of the resource: cores for cpu, bytes for memory, pieces for devices.

    Raises:
        ValueError: Not a quantity, negative, or outside the range of Kubernetes.
    """
    value = _number(quantity)
    if value < 0:
        raise ValueError(f"quantity {redact(quantity)} is negative; use 0 or more")
    if value > _MAX_VALUE or 0 < value < _SUFFIXES["n"]:
        raise ValueError(f"quantity {redact(quantity)} is out of range; Kubernetes accepts 1n to 2^63 - 1")
    return value


def parse_memory(quantity: object) -> str:
    """Return an amount of memory, of whole bytes greater than 0, as text."""
    text = _normalize_quantity("memory", "memory", quantity)
    if parse_quantity(text) < 1:
        raise ValueError(f"memory must be greater than 0, got {redact(quantity)}")
    _check_unit("memory", "memory", text)
    return text


def quantity_text(quantity: str | int | float) -> str:
    """Return a quantity as a string: strings unchanged, numbers without exponent and trailing zeros."""
    parse_quantity(quantity)
    if isinstance(quantity, str):
        return quantity
    text = format(Decimal(repr(quantity)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def resource_name(name: object) -> str:
    """Return the full name of a resource: that of ``gpu`` is ``nvidia.com/gpu``; MIG profiles get the same prefix."""
    lowered = name.lower() if isinstance(name, str) else ""
    if lowered in _ALIASES:
        return _ALIASES[lowered]
    if lowered in _PLAIN:
        return lowered
    full = f"nvidia.com/{lowered}" if lowered.startswith("mig-") else str(name)
    if lowered and (lowered.startswith("hugepages-") or _FULL_NAME.fullmatch(full)):
        return full
    raise ValueError(f"resource {redact(name)} is unknown; use {_KNOWN}")


def normalize_resources(resources: Mapping[str, str | int | float]) -> dict[str, str]:
    """Return resources with full names and quantities as strings."""
    return {full: _normalize_quantity(name, full, resources[name]) for full, name in _names(resources).items()}


def check_resources(what: str, resources: object) -> None:
    """Refuse resources that `normalize_resources` refuses; templates and None are accepted."""
    validation.check_mapping(what, resources, "{'cpu': 2, 'memory': '4Gi', 'gpu': 1}")
    if isinstance(resources, Mapping):
        for full, name in _names(resources).items():
            if not validation.is_placeholder(resources[name]):
                _check_unit(name, full, _normalize_quantity(name, full, resources[name]))


def detect_device(resources: Mapping[str, str | int | float]) -> tuple[str, str] | None:
    """Return device and count of a node, accelerators first: ``("gpu", "2")``, ``("cpu", "4")``; None without any."""
    amounts = normalize_resources(resources)
    for full, amount in amounts.items():
        if full in _DEVICES or full.startswith(_MIG_PREFIX):
            return _DEVICES.get(full, full.removeprefix("nvidia.com/")), str(int(parse_quantity(amount)))
    return ("cpu", amounts["cpu"]) if "cpu" in amounts else None


def get_tpu_num_nodes(num_slices: int, topology: str, chips_per_host: int = 4) -> int:
    """Return the number of nodes of a TPU job: hosts per slice times slices.

    Args:
        num_slices: Number of TPU slices, at least 1.
        topology: Chips of one slice, such as ``"2x4"`` or ``"4x4x4"``.
        chips_per_host: TPU chips of one host. A slice smaller than a host uses one host.

    Raises:
        ValueError: An argument is not positive, the topology is invalid, or its chips do not fill whole hosts.
    """
    if num_slices <= 0:
        raise ValueError(f"num_slices must be positive, got: {num_slices}")
    if chips_per_host <= 0:
        raise ValueError(f"chips_per_host must be positive, got: {chips_per_host}")
    chips = math.prod(_dimensions(topology))
    if chips <= chips_per_host:
        return num_slices
    if chips % chips_per_host:
        raise ValueError(
            f"Total TPU chips in slice ({chips}) must be cleanly divisible by chips_per_host ({chips_per_host})."
        )
    return num_slices * (chips // chips_per_host)


def _dimensions(topology: str) -> list[int]:
    if not topology:
        raise ValueError("TPU topology must be specified.")
    wrong, examples = f"Invalid topology format: {redact(topology)}.", "(e.g. '2x4' or '4x4x4')."
    try:
        dimensions = [int(part) for part in topology.lower().split("x")]
    except ValueError:
        raise ValueError(f"{wrong} Must be formatted as 'AxB' or 'AxBxC' {examples}") from None
    if len(dimensions) not in (2, 3):
        raise ValueError(f"{wrong} Must contain exactly 2 or 3 dimensions {examples}")
    if min(dimensions) <= 0:
        raise ValueError(f"TPU topology dimensions must be positive, got: {redact(topology)}")
    return dimensions


def _number(quantity: object) -> Fraction:
    if isinstance(quantity, int) and not isinstance(quantity, bool):
        return Fraction(quantity)
    if isinstance(quantity, float) and math.isfinite(quantity):
        return Fraction(repr(quantity))
    match = _QUANTITY.fullmatch(quantity) if isinstance(quantity, str) and len(quantity) <= _MAX_TEXT else None
    if match is None:
        shown = redact(quantity)
        raise ValueError(f"{shown} is not a quantity; use a number such as 2, '500m', '10G' or '4Gi'")
    scale = Fraction(10) ** int(match["exponent"]) if match["exponent"] else _SUFFIXES[match["suffix"] or ""]
    return Fraction(match["number"]) * scale


def _names(resources: Mapping[str, object]) -> dict[str, str]:
    """Return the given names by full name."""
    names: dict[str, str] = {}
    for name in resources:
        full = resource_name(name)
        if full in names:
            raise ValueError(
                f"resources name {shorten(full, 60)} twice, as {redact(names[full])} and {redact(name)}; keep one"
            )
        names[full] = name
    slices = sorted(full for full in names if full.startswith(_MIG_PREFIX))
    if len(slices) > 1:
        raise ValueError(f"Multiple MIG resource types are not supported: {validation.list_names(slices)}; keep one")
    if slices and GPU in names:
        raise ValueError(f"GPU ({GPU}) and MIG ({slices[0]}) cannot be requested together; keep one")
    return names


def _normalize_quantity(name: str, full: str, quantity: object) -> str:
    if not isinstance(quantity, (str, int, float)):
        kind = type(quantity).__name__
        raise ValueError(f"resource {redact(name)}: a {kind} is not a quantity; use one such as 2 or '4Gi'")
    try:
        value = parse_quantity(quantity)
    except ValueError as error:
        raise ValueError(f"resource {redact(name)}: {error}") from None
    if "/" in full and value.denominator != 1:
        raise ValueError(f"resource {redact(name)}: {redact(quantity)} is a fraction of a device; use a whole number")
    if full in _BYTES and str(quantity).endswith(("m", "u", "n")):
        raise ValueError(
            f"resource {redact(name)}: {redact(quantity)} is a fraction of a byte; for megabytes use 'M' or 'Mi'"
        )
    return quantity_text(quantity)


def _check_unit(name: str, full: str, text: str) -> None:
    """Refuse less than 1Mi of memory: no process starts in it, and a unit is missing."""
    if full in _BYTES and 0 < parse_quantity(text) < _SUFFIXES["Mi"]:
        raise ValueError(f"resource {redact(name)}: {redact(text)} is less than 1Mi; write the unit, such as '32Gi'")


def check_process_count(num_nodes: int, num_processes: int) -> None:
    """Check the number of processes of a TrainJob whose nodes all run on this machine."""
    if num_nodes * num_processes > MAX_PROCESSES:
        raise UnsupportedError(
            f"num_nodes={num_nodes} with {num_processes} processes each is more than one machine runs; use at most "
            f"{MAX_PROCESSES} processes, or a backend on a cluster"
        )
