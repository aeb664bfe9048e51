"""Listed: what a list of runtimes says of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer_core.admin.raw import INITIALIZERS
from trainer_core.cluster import runtimes

__all__ = ["Listed", "listed"]


@dataclass(frozen=True)
class Listed:
    """A runtime in a list.

    Attributes:
        name: Its name.
        namespace: Where it can be used; None for everywhere.
        framework: What it trains with.
        policy: How its nodes learn of each other; None for nodes that are on their own.
        num_nodes: Nodes of a TrainJob that does not say.
        image: Image of the training nodes.
        device: What a node computes on.
        device_count: How many of it.
        initializers: Steps that fetch first: ``dataset``, ``model``.
        deprecated: Its makers advise against it.
    """

    name: str
    namespace: str | None
    framework: str
    policy: str | None
    num_nodes: int
    image: str
    device: str
    device_count: str
    initializers: tuple[str, ...] = ()
    deprecated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "initializers": list(self.initializers)}


def listed(raw: Mapping[str, Any]) -> Listed:
    """Return what a list says of a runtime."""
    found = runtimes.runtime(raw)
    return Listed(
        name=found.name,
        namespace=raw["metadata"].get("namespace"),
        framework=found.trainer.framework,
        policy=runtimes.policy(raw),
        num_nodes=found.trainer.num_nodes,
        image=found.trainer.image,
        device=found.trainer.device,
        device_count=found.trainer.device_count,
        initializers=tuple(step.removesuffix("-initializer") for step in INITIALIZERS if runtimes.job(raw, step)),
        deprecated=runtimes.is_deprecated(raw),
    )
