"""The double fails as networks and servers do, at chosen requests and at random."""

from __future__ import annotations

import time

import pytest
import urllib3
from fake_cluster import Fault

CONFIGS = "/api/v1/namespaces/default/configmaps"
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}
CLUSTER = {"trainer": None}


@pytest.mark.parametrize(
    ("status", "reason"), [(429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable")]
)
def test_the_next_request_is_refused_and_the_one_after_it_not(cluster, client, status, reason):
    cluster.faults.next(status=status)
    found, body = client.ask("GET", CONFIGS)
    assert (found, body["kind"], body["reason"]) == (status, "Status", reason)
    assert client.ask("GET", CONFIGS)[0] == 200


def test_a_refusal_can_have_retry_after(cluster, client):
    cluster.faults.next(status=429, retry_after=2)
    answer = client.send("GET", CONFIGS)
    assert (answer.headers["Retry-After"], answer.json()["details"]) == ("2", {"retryAfterSeconds": 2})


def test_only_requests_that_fit_fail(cluster, client):
    cluster.faults.next(status=503, method="POST", path="configmaps", times=2)
    assert client.ask("GET", CONFIGS)[0] == 200
    assert [client.ask("POST", CONFIGS, CONFIG)[0] for _ in range(3)] == [503, 503, 201]


def test_what_is_reset_has_not_happened(cluster, client):
    cluster.faults.next(reset=True)
    with pytest.raises(urllib3.exceptions.ProtocolError):
        client.send("POST", CONFIGS, CONFIG)
    assert cluster.get("ConfigMap", "one") is None


def test_what_is_reset_afterwards_has_happened(cluster, client):
    cluster.faults.next(reset=True, after=True)
    with pytest.raises(urllib3.exceptions.ProtocolError):
        client.send("POST", CONFIGS, CONFIG)
    assert cluster.get("ConfigMap", "one")


def test_a_request_that_hangs_ends_with_its_client_or_a_reset(cluster, client):
    cluster.faults.next(hang=0.1)
    start = time.monotonic()
    with pytest.raises(urllib3.exceptions.ProtocolError):
        client.send("GET", CONFIGS)
    assert time.monotonic() - start >= 0.1


def test_chance_is_the_same_for_the_same_seed(cluster, client):
    runs = []
    for _ in range(2):
        cluster.faults.at_random(0.5, seed=7, kinds=[Fault(status=503)])
        runs.append([client.ask("GET", CONFIGS)[0] for _ in range(20)])
    assert runs[0] == runs[1]
    assert set(runs[0]) == {200, 503}


def test_faults_are_counted_and_can_be_cleared(cluster, client):
    cluster.faults.at_random(1.0, kinds=[Fault(status=500, after=True)])
    client.ask("GET", CONFIGS)
    cluster.faults.clear()
    assert client.ask("GET", CONFIGS)[0] == 200
    assert cluster.faults.counts == {"500-after": 1}


def test_an_answer_may_break_off(cluster, client):
    cluster.faults.next(truncate=True)
    with pytest.raises(urllib3.exceptions.ProtocolError):
        client.send("GET", CONFIGS)


def test_an_answer_may_come_slowly(cluster, client):
    cluster.faults.next(drip=0.0001)
    assert client.ask("GET", CONFIGS) == client.ask("GET", CONFIGS)
