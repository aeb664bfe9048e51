"""The double shows logs of pods as a kubelet does."""

from __future__ import annotations

import pytest
from fake_cluster import Cluster
from fake_cluster.raw_client import RawClient

LOG = "/api/v1/namespaces/default/pods/p/log"
SECOND = 1_000_000_000
#: 2026-01-01T00:00:00Z
START = 1_767_225_600 * SECOND


class Numbers:
    """A long log that takes no memory."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: slice) -> list[tuple[int, bytes]]:
        return [(START + number, b"%09d" % number) for number in range(*place.indices(self._count))]


@pytest.fixture
def cluster():
    with Cluster(controllers=False, trainer=None) as made:
        made.add(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "node"}]}}
        )
        yield made


@pytest.fixture
def client(cluster):
    with RawClient(cluster.url) as made:
        yield made


def timed(*seconds: float) -> list[tuple[int, bytes]]:
    return [(START + int(second * SECOND), f"at {second}".encode()) for second in seconds]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "at 0.5\nat 1.25\nat 2\n"),
        ("?container=node&tailLines=2", "at 1.25\nat 2\n"),
        ("?limitBytes=9", "at 0.5\nat"),
        ("?sinceTime=2026-01-01T00:00:01Z", "at 1.25\nat 2\n"),
        ("?sinceTime=2026-01-01T00:00:01.9Z", "at 1.25\nat 2\n"),
        ("?sinceTime=2026-01-01T01:00:02%2B01:00", "at 2\n"),
        ("?timestamps=true&tailLines=2", "2026-01-01T00:00:01.25Z at 1.25\n2026-01-01T00:00:02Z at 2\n"),
    ],
)
def test_what_is_asked_for_is_shown(cluster, client, query, text):
    cluster.start_log("p", timed(0.5, 1.25, 2), ended=True)
    assert client.send("GET", LOG + query).data.decode() == text


def test_a_log_is_followed_until_its_container_ends(cluster, client):
    cluster.write_log("p", "first")
    chunks = client.stream(f"{LOG}?follow=true")
    assert next(chunks) == b"first\n"
    cluster.write_log("p", "second")
    assert next(chunks) == b"second\n"
    cluster.end_log("p")
    assert [*chunks] == []


def test_the_log_of_the_run_before_is_kept(cluster, client):
    cluster.start_log("p", timed(1), ended=True)
    cluster.start_log("p", timed(2))
    assert client.send("GET", LOG + "?previous=true").data == b"at 1\n"
    assert client.send("GET", LOG).data == b"at 2\n"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", 'container "node" in pod "p" is waiting to start: ContainerCreating'),
        ("?previous=true", 'previous terminated container "node" in pod "p" not found'),
        ("?container=other", "container other is not valid for pod p"),
    ],
)
def test_what_cannot_be_shown_is_a_bad_request(client, query, message):
    status, body = client.ask("GET", LOG + query)
    assert (status, body["message"]) == (400, message)


def test_a_long_log_is_shown_to_its_end(cluster, client):
    cluster.start_log("p", Numbers(200_000), ended=True)
    data = client.send("GET", LOG).data
    assert (len(data), data[-10:]) == (2_000_000, b"000199999\n")


def test_a_log_may_break_off_within_a_line(cluster, client):
    import urllib3

    cluster.start_log("p", timed(1, 2), ended=True)
    cluster.faults.next(truncate=True, path="log")
    with pytest.raises(urllib3.exceptions.ProtocolError):
        client.send("GET", LOG)


def test_a_log_that_is_followed_ends_with_its_pod(cluster, client):
    cluster.write_log("p", "first")
    chunks = client.stream(f"{LOG}?follow=true")
    next(chunks)
    cluster.delete("Pod", "p")
    assert [*chunks] == []
