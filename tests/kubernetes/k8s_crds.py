"""The schema of TrainJob in each release of Trainer, and the runtimes that come with it."""

from __future__ import annotations

from functools import cache
from typing import Any

from fake_cluster import crds

from trainer_core.backends.trainer_v2 import schema_compat
from trainer_core.backends.trainer_v2.schema_compat import TrainJobSchema

VERSIONS = crds.TRAINER_VERSIONS


@cache
def server(version: str = "2.3") -> TrainJobSchema:
    return schema_compat.parse_crd(crds.definition("TrainJob", version))


def runtime(name: str) -> dict[str, Any]:
    """Return a stock runtime, which may be changed."""
    return crds.stock_runtimes()[name]
