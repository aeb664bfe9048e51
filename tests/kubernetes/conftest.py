"""A cluster for a test that plays no lives of jobs: objects, requests and watches are all that it sees."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster
from fake_cluster.raw_client import RawClient


@pytest.fixture
def cluster(request):
    """A cluster without controllers; a module says by ``CLUSTER`` what else is particular to its clusters."""
    with Cluster(controllers=False, **getattr(request.module, "CLUSTER", {})) as made:
        yield made


@pytest.fixture
def client(cluster):
    """A client of that cluster that sends any request."""
    with RawClient(cluster.url) as made:
        yield made
