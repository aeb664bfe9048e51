"""The use of processor, memory and GPUs by a TrainJob: report lines of its nodes, and the summary in its outcome. Pure.

`trainer_core.node.resource_monitor` writes the lines, and the totals of each node into its termination record.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trainer_core.base.text import format_memory
from trainer_core.node.env import RESOURCE_PREFIX

_GPU_FIELDS = ("number", "utilization", "memory", "memory_limit")


@dataclass(frozen=True, kw_only=True)
class ResourceUse:
    """Use of resources by the nodes of a TrainJob, from their first report to their last one.

    Attributes:
        nodes: Number of nodes that reported.
        seconds: Reported time of the node that reported longest, in seconds.
        cpu_percent: Mean use of the processors that the nodes may use, 0 to 100.
        memory_peak: Highest reported memory of a node, in bytes. A peak between two samples is not seen.
        memory_limit: Memory that this node may use, in bytes.
        gpus: Number of GPUs of all nodes.
        gpu_percent: Mean utilisation of the GPUs, 0 to 100. None without GPUs, or if they do not report it.
        gpu_memory_peak: Highest reported memory of a GPU, in bytes. None without GPUs.
        gpu_memory_limit: Memory of this GPU, in bytes. None without GPUs.
        gpu_hours: Reported time multiplied by the number of GPUs, in hours.
        gpu_idle_share: Share of the GPU time with a utilisation below 5 percent, 0 to 1. None as for `gpu_percent`.
    """

    nodes: int
    seconds: float
    cpu_percent: float
    memory_peak: int
    memory_limit: int
    gpus: int = 0
    gpu_percent: float | None = None
    gpu_memory_peak: int | None = None
    gpu_memory_limit: int | None = None
    gpu_hours: float = 0.0
    gpu_idle_share: float | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __str__(self) -> str:
        """Return the summary as one line."""
        return ", ".join(f"{name} {value}" for name, value in self.describe().items())

    def describe(self) -> dict[str, str]:
        """Return the summary as text by name, for tables."""
        texts = {
            "peak memory": f"{format_memory(self.memory_peak)} of {format_memory(self.memory_limit)}",
            "processor use": f"{self.cpu_percent:.0f}%",
        }
        if self.gpus:
            texts["GPUs"] = f"{self.gpus}"
            texts["GPU hours"] = f"{self.gpu_hours:.2f}"
        if self.gpu_percent is not None and self.gpu_idle_share is not None:
            texts["GPU use"] = f"{self.gpu_percent:.0f}%"
            texts["GPU idle"] = f"{self.gpu_idle_share:.0%}"
        if self.gpu_memory_peak is not None and self.gpu_memory_limit is not None:
            texts["peak GPU memory"] = (
                f"{format_memory(self.gpu_memory_peak)} of {format_memory(self.gpu_memory_limit)}"
            )
        return texts


def summarize_resource_use(records: Iterable[Mapping[str, Any] | None]) -> ResourceUse | None:
    """Return the use of resources of a TrainJob; None if no node has reported it."""
    nodes = [totals for record in records if (totals := _get_totals(record))]
    if not nodes:
        return None
    total: dict[str, float] = defaultdict(float)
    for node in nodes:
        for name, value in node.items():
            total[name] += value
    memory = max(nodes, key=lambda node: node["memory_peak"])
    gpu = max(nodes, key=lambda node: node.get("gpu_memory_peak", -1.0))
    gpu_seconds = total["gpu_read_seconds"]
    return ResourceUse(
        nodes=len(nodes),
        seconds=max(node["seconds"] for node in nodes),
        cpu_percent=round(100 * total["cpu_seconds"] / (total["cpu_available_seconds"] or math.inf), 1),
        memory_peak=int(memory["memory_peak"]),
        memory_limit=int(memory["memory_limit"]),
        gpus=int(total["gpus"]),
        gpu_percent=round(100 * total["gpu_busy_seconds"] / gpu_seconds, 1) if gpu_seconds else None,
        gpu_memory_peak=int(gpu["gpu_memory_peak"]) if "gpu_memory_peak" in gpu else None,
        gpu_memory_limit=int(gpu["gpu_memory_limit"]) if "gpu_memory_limit" in gpu else None,
        gpu_hours=round(total["gpu_seconds"] / 3600, 4),
        gpu_idle_share=round(total["gpu_idle_seconds"] / gpu_seconds, 3) if gpu_seconds else None,
    )


def describe_memory(record: Mapping[str, Any] | None, gpu: bool = False) -> str | None:
    """Return the limit of a node's memory and the highest sample, as text; None if it has not reported them."""
    totals = _get_totals(record)
    kind = "gpu_memory" if gpu else "memory"
    if not totals or f"{kind}_peak" not in totals or f"{kind}_limit" not in totals:
        return None
    limit, peak = format_memory(totals[f"{kind}_limit"]), format_memory(totals[f"{kind}_peak"])
    return f"limit {limit}; the highest sample before its end was {peak}"


def parse_resource_report(line: str) -> dict[str, Any] | None:
    """Parse a log line; return None if it is no report of the use of resources.

    Args:
        line: A log line.

    Returns:
        ``t`` (milliseconds since 1970), ``cpu`` (percent), ``memory`` and ``memory_limit`` (bytes), and ``gpus``: a
        list of ``number``, ``utilization`` (percent), ``memory`` and ``memory_limit``, as far as they are known.
    """
    _, found, text = line.partition(RESOURCE_PREFIX)
    if not found:
        return None
    try:
        data = json.loads(text)
        gpus = [_select_numbers(gpu, _GPU_FIELDS) for gpu in data["gpus"]]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    report = _select_numbers(data, ("t", "cpu", "memory", "memory_limit"))
    return {**report, "gpus": [gpu for gpu in gpus if "number" in gpu]} if len(report) == 4 else None


def strip_resource_report(line: str) -> str | None:
    """Return a log line without a report of the use of resources; None if the line has nothing else.

    A report that met an unfinished line of the training is behind the beginning of that line.
    """
    before, found, _ = line.partition(RESOURCE_PREFIX)
    return line if not found else before or None


def _get_totals(record: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the totals in a termination record; empty without them, or if another program has changed them."""
    resources = (record or {}).get("resources")
    numbers = dict(_list_numbers(resources)) if isinstance(resources, Mapping) else {}
    required = ("seconds", "cpu_seconds", "cpu_available_seconds", "memory_peak", "memory_limit")
    return numbers if all(name in numbers for name in required) else {}


def _list_numbers(data: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in data.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
            yield name, value


def _select_numbers(data: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    return {name: value for name, value in _list_numbers(data) if name in names}
