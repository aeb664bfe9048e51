"""The double of the API server streams changes, and everything that a watch has to live with."""

from __future__ import annotations

import itertools

import pytest
import urllib3
from fake_cluster import Cluster
from fake_cluster.raw_client import RawClient

CONFIGS = "/api/v1/namespaces/default/configmaps"
CLUSTER = {"trainer": None}


def config(name: str, **labels: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


def label(**labels: str | None):
    return lambda raw: raw["metadata"]["labels"].update(labels)


def seen(events) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def version(cluster: Cluster, client: RawClient) -> str:
    return client.ask("GET", CONFIGS)[1]["metadata"]["resourceVersion"]


def test_a_watch_from_a_version_shows_all_that_came_after(cluster, client):
    cluster.add(config("before"))
    start = version(cluster, client)
    cluster.add(config("a"))
    cluster.update("ConfigMap", "a", label(x="1"))
    cluster.delete("ConfigMap", "a")
    events = client.watch(f"{CONFIGS}?watch=true&timeoutSeconds=0.1&resourceVersion={start}")
    assert seen(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_a_watch_from_nowhere_shows_first_what_is_there(cluster, client):
    cluster.add(config("there"))
    assert seen(client.watch(f"{CONFIGS}?watch=1&timeoutSeconds=0.1")) == [("ADDED", "there")]


def test_a_watch_shows_what_happens_while_it_is_open(cluster, client):
    events = client.watch(f"{CONFIGS}?watch=true&timeoutSeconds=60&resourceVersion={version(cluster, client)}")
    cluster.add(config("first"))
    assert next(events)["object"]["metadata"]["name"] == "first"
    cluster.add(config("second"))
    assert next(events)["object"]["metadata"]["name"] == "second"
    events.close()


def test_what_moves_in_and_out_of_a_selection_is_added_and_deleted(cluster, client):
    start = version(cluster, client)
    cluster.add(config("a", team="x"))
    cluster.update("ConfigMap", "a", label(team="y"))
    cluster.update("ConfigMap", "a", label(team="x"))
    events = client.watch(f"{CONFIGS}?watch=true&timeoutSeconds=0.1&resourceVersion={start}&labelSelector=team=y")
    assert seen(events) == [("ADDED", "a"), ("DELETED", "a")]


def test_a_deleted_object_has_the_version_of_its_deletion(cluster, client):
    cluster.add(config("a"))
    start = version(cluster, client)
    cluster.delete("ConfigMap", "a")
    (event,) = client.watch(f"{CONFIGS}?watch=true&timeoutSeconds=0.1&resourceVersion={start}")
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(start)


def test_bookmarks_have_the_version_of_changes_of_other_kinds(cluster, client):
    start = version(cluster, client)
    cluster.add({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "of-another-kind"}})
    path = f"{CONFIGS}?watch=true&timeoutSeconds=0.1&resourceVersion={start}&allowWatchBookmarks=true"
    last = [*client.watch(path)][-1]
    assert (last["type"], last["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
    assert int(last["object"]["metadata"]["resourceVersion"]) > int(start)


def test_a_version_that_is_compacted_away_is_gone(cluster, client):
    start = version(cluster, client)
    cluster.add(config("a"))
    cluster.compact()
    (event,) = client.watch(f"{CONFIGS}?watch=true&resourceVersion={start}")
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_a_history_that_is_full_forgets_the_oldest_changes():
    with Cluster(controllers=False, trainer=None, keep=3) as cluster, RawClient(cluster.url) as client:
        start = version(cluster, client)
        for name in "abcd":
            cluster.add(config(name))
        (event,) = client.watch(f"{CONFIGS}?watch=true&resourceVersion={start}")
    assert event["object"]["code"] == 410


def test_a_watch_of_one_object_shows_no_other(cluster, client):
    cluster.add(config("a"))
    cluster.add(config("b"))
    assert seen(client.watch(f"{CONFIGS}?watch=true&timeoutSeconds=0.1&fieldSelector=metadata.name=b")) == [
        ("ADDED", "b")
    ]


def test_watches_can_be_cut(cluster, client):
    cluster.add(config("a"))
    events = client.watch(f"{CONFIGS}?watch=true")
    next(events)
    assert cluster.watches == 1
    cluster.break_watches()
    with pytest.raises(urllib3.exceptions.ProtocolError):
        next(events)


def test_a_watch_may_end_within_a_line(cluster, client):
    cluster.faults.next(truncate=True, watch=True)
    events = client.watch(f"{CONFIGS}?watch=true&resourceVersion={version(cluster, client)}")
    cluster.add(config("a"))
    with pytest.raises(urllib3.exceptions.ProtocolError):
        next(events)


def test_a_watch_may_be_told_that_it_is_too_old(cluster, client):
    cluster.faults.next(gone=True, watch=True)
    (event,) = client.watch(f"{CONFIGS}?watch=true&resourceVersion={version(cluster, client)}")
    assert event["object"]["reason"] == "Expired"


def test_a_slow_watch_loses_nothing(cluster, client):
    cluster.add(config("a"))
    cluster.faults.next(drip=0.0005, watch=True)
    assert seen(itertools.islice(client.watch(f"{CONFIGS}?watch=true"), 1)) == [("ADDED", "a")]
