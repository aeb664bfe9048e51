from __future__ import annotations

import threading
import time
import tracemalloc

import pytest

from trainer_core.cluster import connect
from trainer_core.cluster.answers import (
    BrokenOffError,
    BusyError,
    ForbiddenError,
    NotInstalledError,
    NotThereError,
    RejectedError,
    StaleError,
    TakenError,
    UnauthorizedError,
)
from trainer_core.cluster.api import Api, LogPart
from trainer_core.cluster.kinds import CLUSTER_TRAINING_RUNTIMES, CONFIG_MAPS, PODS, TRAINJOBS, Kind
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import BackendUnavailableError


@pytest.fixture
def api(cluster):
    return Api(connect.connect(KubernetesBackendConfig(client_configuration=cluster.configuration())))


def config_map(name="a", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def add_pod(cluster, name="pod"):
    cluster.add(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "node", "image": "python"}]},
            "status": {"phase": "Running"},
        }
    )


def test_what_is_created_can_be_read(api):
    created = api.create(CONFIG_MAPS, config_map(key="value"))

    assert api.get(CONFIG_MAPS, "a") == created
    assert created["data"] == {"key": "value"}


def test_objects_are_in_the_namespace_of_the_connection_unless_said_otherwise(cluster, api):
    cluster.add({**config_map("elsewhere"), "metadata": {"name": "elsewhere", "namespace": "other"}})
    api.create(CONFIG_MAPS, config_map("here"))

    assert [each["metadata"]["name"] for each in api.list(CONFIG_MAPS)] == ["here"]
    assert api.get(CONFIG_MAPS, "elsewhere", namespace="other")
    assert len(api.list(CONFIG_MAPS, everywhere=True)) == 2


def test_kinds_without_namespace_are_read_from_the_cluster(cluster, api):
    assert api.get(CLUSTER_TRAINING_RUNTIMES, "torch-distributed")["kind"] == "ClusterTrainingRuntime"


def test_any_path_can_be_read(api):
    assert api.read("/version")["major"] == "1"


def test_all_pages_of_a_list_are_read(cluster, api):
    for number in range(1001):
        cluster.add(config_map(f"map-{number}"))

    assert len(api.list(CONFIG_MAPS)) == 1001
    assert cluster.counts["list configmaps"] == 3


def test_a_list_whose_next_page_has_expired_begins_again(cluster, api):
    for number in range(501):
        cluster.add(config_map(f"map-{number}"))
    cluster.faults.next(status=410, path="configmaps", method="GET")

    assert len(api.list(CONFIG_MAPS)) == 501


def test_selectors_choose(cluster, api):
    cluster.add({**config_map("a"), "metadata": {"name": "a", "labels": {"x": "1"}}})
    cluster.add(config_map("b"))

    assert [each["metadata"]["name"] for each in api.list(CONFIG_MAPS, labels="x=1")] == ["a"]
    assert [each["metadata"]["name"] for each in api.list(CONFIG_MAPS, fields="metadata.name=b")] == ["b"]


def test_a_name_that_is_taken_is_refused(api):
    api.create(CONFIG_MAPS, config_map())

    with pytest.raises(TakenError, match="'a'"):
        api.create(CONFIG_MAPS, config_map())


def test_a_dry_run_creates_nothing(cluster, api):
    api.create(CONFIG_MAPS, config_map(), dry_run=True)

    assert cluster.get("configmaps", "a") is None


@pytest.mark.parametrize("verb", ["create", "apply"])
def test_the_server_is_asked_to_refuse_unknown_fields(cluster, api, verb):
    getattr(api, verb)(CONFIG_MAPS, config_map())

    assert cluster.requests[-1].query["fieldValidation"] == "Strict"


def test_a_patch_merges_and_none_removes(api):
    api.create(CONFIG_MAPS, config_map(kept="1", removed="2"))

    assert api.patch(CONFIG_MAPS, "a", {"data": {"removed": None, "new": "3"}})["data"] == {"kept": "1", "new": "3"}


def test_a_patch_of_another_version_is_refused(api):
    api.create(CONFIG_MAPS, config_map())

    with pytest.raises(StaleError):
        api.patch(CONFIG_MAPS, "a", {"metadata": {"resourceVersion": "1"}, "data": {"x": "y"}})


def test_apply_creates_and_then_changes(api):
    api.apply(CONFIG_MAPS, config_map(key="1"))
    applied = api.apply(CONFIG_MAPS, config_map(key="2"))

    assert applied["data"] == {"key": "2"}


def test_delete_says_whether_there_was_something(cluster, api):
    api.create(CONFIG_MAPS, config_map())

    assert api.delete(CONFIG_MAPS, "a", foreground=False)
    assert not api.delete(CONFIG_MAPS, "a")


def test_another_object_of_the_name_is_not_deleted(cluster, api):
    api.create(CONFIG_MAPS, config_map())

    assert not api.delete(CONFIG_MAPS, "a", uid="of-another")
    assert cluster.get("configmaps", "a")


def test_deleting_goes_from_the_leaves_to_the_root(cluster, api):
    api.create(CONFIG_MAPS, config_map())

    api.delete(CONFIG_MAPS, "a", uid=cluster.get("configmaps", "a")["metadata"]["uid"])

    assert cluster.counts["delete configmaps"] == 1


def test_what_is_not_there_is_an_error_of_its_own(api):
    with pytest.raises(NotThereError):
        api.get(CONFIG_MAPS, "a")


def test_a_kind_that_the_cluster_does_not_know_is_an_error_of_its_own(api):
    with pytest.raises(NotInstalledError, match=r"frogs of x\.io/v1 is not"):
        api.list(Kind("x.io", "v1", "frogs", "Frog"))


def test_what_no_role_allows_is_named(cluster, api):
    cluster.forbid("list", "pods")

    with pytest.raises(ForbiddenError, match="ask for a role that may list pods"):
        api.list(PODS)


def test_permissions_can_be_asked_for(cluster, api):
    cluster.forbid("delete", "trainjobs")

    assert api.allowed("create", TRAINJOBS)
    assert not api.allowed("delete", TRAINJOBS)


@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 503}, {"reset": True}])
def test_what_fails_for_a_moment_is_sent_again(cluster, api, fault):
    cluster.faults.next(times=2, **fault)

    assert api.create(CONFIG_MAPS, config_map())


def test_the_server_says_when_to_ask_again(cluster, api):
    cluster.faults.next(status=429, retry_after=1)
    begun = time.monotonic()

    api.list(CONFIG_MAPS)

    assert time.monotonic() - begun >= 1


def test_what_keeps_failing_is_an_error(cluster, api):
    cluster.faults.next(status=503, times=20)

    with pytest.raises(BusyError):
        api.list(CONFIG_MAPS)


def test_what_would_be_made_twice_is_sent_once(cluster, api):
    cluster.faults.next(status=503, method="POST")

    with pytest.raises(BusyError):
        api.create(CONFIG_MAPS, {**config_map(), "metadata": {"generateName": "a-"}})


def test_a_created_object_whose_answer_was_lost_is_found_to_be_there(cluster, api):
    cluster.faults.next(reset=True, after=True, method="POST")

    with pytest.raises(TakenError):
        api.create(CONFIG_MAPS, config_map())


def test_a_server_that_is_away_cannot_be_reached(cluster, api):
    configuration = cluster.configuration()
    configuration.host = "http://user:hunter2@127.0.0.1:9"
    away = Api(connect.connect(KubernetesBackendConfig(client_configuration=configuration)))

    with pytest.raises(BackendUnavailableError, match="cannot be reached to list pods") as caught:
        away.list(PODS)
    assert "hunter2" not in str(caught.value)


def test_credentials_that_are_not_taken_say_to_log_in(cluster, api):
    cluster.tokens = {"another"}

    with pytest.raises(UnauthorizedError, match="log in to the cluster again"):
        api.list(PODS)


def test_an_answer_that_is_no_json_is_an_error(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one")

    with pytest.raises(BrokenOffError, match="is no JSON"):
        api.read(PODS.path("default", "pod", "log"))


def test_an_object_that_cannot_be_is_refused(api):
    with pytest.raises(RejectedError):
        api.create(CONFIG_MAPS, config_map("Not_A_Name"))


def test_requests_say_who_sends_them(cluster, api):
    api.list(PODS)

    assert cluster.requests[-1].agent.startswith("trainjob-workflows/")


def test_the_lines_of_a_log_are_yielded_with_their_ends(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one", "two")

    assert list(api.pod_log("pod")) == [b"one\n", b"two\n"]


def test_carriage_returns_do_not_end_a_line(cluster, api):
    add_pod(cluster)
    cluster.start_log("pod", [(0, b"10%\r20%\r30%")])

    assert list(api.pod_log("pod")) == [b"10%\r20%\r30%\n"]


def test_the_end_of_a_log_can_be_read(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one", "two", "three")

    assert list(api.pod_log("pod", LogPart("node", tail=1))) == [b"three\n"]


def test_a_followed_log_yields_lines_as_they_come(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one")
    log = api.pod_log("pod", LogPart(follow=True))

    first = next(log)
    cluster.write_log("pod", "two")
    second = next(log)
    cluster.end_log("pod")

    assert [first, second, *log] == [b"one\n", b"two\n"]


def test_a_log_that_is_read_no_further_is_closed(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one")
    log = api.pod_log("pod", LogPart(follow=True))
    next(log)

    log.close()

    assert api.list(PODS)


def test_the_log_of_a_pod_that_is_gone_is_not_there(api):
    with pytest.raises(NotThereError):
        next(api.pod_log("pod"))


def test_a_line_that_does_not_end_comes_in_pieces(cluster, api):
    add_pod(cluster)
    cluster.start_log("pod", [(0, b"x" * 3_000_000)])

    pieces = list(api.pod_log("pod"))

    assert b"".join(pieces) == b"x" * 3_000_000 + b"\n"
    assert max(map(len, pieces)) < 1_300_000


class LongLog:
    """So many lines that do not exist before they are read."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        wanted = range(self.length)[index]
        return [self.line(each) for each in wanted] if isinstance(wanted, range) else self.line(wanted)

    def line(self, number):
        return number, b"%0100d" % number


def test_a_long_log_is_read_in_little_memory(cluster, api):
    add_pod(cluster)
    cluster.start_log("pod", LongLog(100_000), ended=True)
    tracemalloc.start()

    count = sum(1 for _ in api.pod_log("pod"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 100_000
    assert peak < 5_000_000


def test_threads_share_a_connection(cluster, api):
    for number in range(20):
        cluster.add(config_map(f"map-{number}"))
    found = []
    threads = [
        threading.Thread(
            target=lambda name=f"map-{number}": found.append(api.get(CONFIG_MAPS, name)["metadata"]["name"])
        )
        for number in range(20)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == sorted(f"map-{number}" for number in range(20))
