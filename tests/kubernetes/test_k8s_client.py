from __future__ import annotations

import threading
import time
import tracemalloc

import pytest

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s.client import ApiClient, PodLogOptions
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.errors import (
    AlreadyExistsError,
    ApiNotServedError,
    ForbiddenError,
    NotFoundError,
    RejectedError,
    ServerBusyError,
    StreamInterruptedError,
    UnauthorizedError,
    WriteConflictError,
)
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, CONFIG_MAPS, PODS, TRAINJOBS, ApiResource
from trainer_core.model.config import KubernetesBackendConfig


@pytest.fixture
def api(cluster):
    return ApiClient(Connection(KubernetesBackendConfig(client_configuration=cluster.configuration())))


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


def test_a_created_object_can_be_read(api):
    created = api.create(CONFIG_MAPS, config_map(key="value"))

    assert api.get(CONFIG_MAPS, "a") == created
    assert created["data"] == {"key": "value"}


def test_the_connections_namespace_is_the_default(cluster, api):
    cluster.add({**config_map("elsewhere"), "metadata": {"name": "elsewhere", "namespace": "other"}})
    api.create(CONFIG_MAPS, config_map("here"))

    assert [each["metadata"]["name"] for each in api.list(CONFIG_MAPS)] == ["here"]
    assert api.get(CONFIG_MAPS, "elsewhere", namespace="other")
    assert len(api.list(CONFIG_MAPS, all_namespaces=True)) == 2


def test_cluster_scoped_objects_are_read_without_a_namespace(cluster, api):
    assert api.get(CLUSTER_TRAINING_RUNTIMES, "torch-distributed")["kind"] == "ClusterTrainingRuntime"


def test_any_path_can_be_read(api):
    assert api.get_path("/version")["major"] == "1"


def test_all_pages_of_a_list_are_read(cluster, api):
    for number in range(1001):
        cluster.add(config_map(f"map-{number}"))

    assert len(api.list(CONFIG_MAPS)) == 1001
    assert cluster.counts["list configmaps"] == 3


def test_a_list_whose_next_page_has_expired_is_repeated(cluster, api):
    for number in range(501):
        cluster.add(config_map(f"map-{number}"))
    cluster.faults.next(status=410, path="configmaps", method="GET")

    assert len(api.list(CONFIG_MAPS)) == 501


def test_selectors_limit_a_list(cluster, api):
    cluster.add({**config_map("a"), "metadata": {"name": "a", "labels": {"x": "1"}}})
    cluster.add(config_map("b"))

    assert [each["metadata"]["name"] for each in api.list(CONFIG_MAPS, label_selector="x=1")] == ["a"]
    assert [each["metadata"]["name"] for each in api.list(CONFIG_MAPS, field_selector="metadata.name=b")] == ["b"]


def test_creating_an_existing_name_is_refused(api):
    api.create(CONFIG_MAPS, config_map())

    with pytest.raises(AlreadyExistsError, match="'a'"):
        api.create(CONFIG_MAPS, config_map())


def test_a_dry_run_creates_nothing(cluster, api):
    api.create(CONFIG_MAPS, config_map(), dry_run=True)

    assert cluster.get("configmaps", "a") is None


@pytest.mark.parametrize("verb", ["create", "apply"])
def test_writes_request_strict_field_validation(cluster, api, verb):
    getattr(api, verb)(CONFIG_MAPS, config_map())

    assert cluster.requests[-1].query["fieldValidation"] == "Strict"


def test_a_patch_merges_fields_and_none_removes_one(api):
    api.create(CONFIG_MAPS, config_map(kept="1", removed="2"))

    assert api.patch(CONFIG_MAPS, "a", {"data": {"removed": None, "new": "3"}})["data"] == {"kept": "1", "new": "3"}


def test_a_patch_with_an_outdated_resource_version_is_refused(api):
    api.create(CONFIG_MAPS, config_map())

    with pytest.raises(WriteConflictError):
        api.patch(CONFIG_MAPS, "a", {"metadata": {"resourceVersion": "1"}, "data": {"x": "y"}})


def test_apply_creates_an_object_and_then_updates_it(api):
    api.apply(CONFIG_MAPS, config_map(key="1"))
    applied = api.apply(CONFIG_MAPS, config_map(key="2"))

    assert applied["data"] == {"key": "2"}


def test_delete_returns_whether_the_object_existed(cluster, api):
    api.create(CONFIG_MAPS, config_map())

    assert api.delete(CONFIG_MAPS, "a", foreground=False)
    assert not api.delete(CONFIG_MAPS, "a")


def test_an_object_with_another_uid_is_not_deleted(cluster, api):
    api.create(CONFIG_MAPS, config_map())

    assert not api.delete(CONFIG_MAPS, "a", uid="of-another")
    assert cluster.get("configmaps", "a")


def test_an_object_with_the_given_uid_is_deleted_with_one_request(cluster, api):
    api.create(CONFIG_MAPS, config_map())

    api.delete(CONFIG_MAPS, "a", uid=cluster.get("configmaps", "a")["metadata"]["uid"])

    assert cluster.counts["delete configmaps"] == 1


def test_a_missing_object_raises_not_found(api):
    with pytest.raises(NotFoundError):
        api.get(CONFIG_MAPS, "a")


def test_a_resource_that_is_not_served_raises_api_not_served(api):
    with pytest.raises(ApiNotServedError, match=r"frogs of x\.io/v1 is not"):
        api.list(ApiResource("x.io", "v1", "frogs", "Frog"))


def test_a_denied_permission_is_named(cluster, api):
    cluster.forbid("list", "pods")

    with pytest.raises(ForbiddenError, match="ask for a role that may list pods"):
        api.list(PODS)


def test_permissions_can_be_checked(cluster, api):
    cluster.forbid("delete", "trainjobs")

    assert api.is_allowed("create", TRAINJOBS)
    assert not api.is_allowed("delete", TRAINJOBS)


@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 503}, {"reset": True}])
def test_a_repeatable_request_is_retried_after_a_transient_failure(cluster, api, fault):
    cluster.faults.next(times=2, **fault)

    assert api.create(CONFIG_MAPS, config_map())


def test_urllib3_has_no_line_of_its_own_for_a_retry(cluster, api, caplog):
    cluster.faults.next(times=2, reset=True)

    api.list(CONFIG_MAPS)

    assert caplog.records == []


def test_a_retry_waits_for_retry_after(cluster, api):
    cluster.faults.next(status=429, retry_after=1)
    begun = time.monotonic()

    api.list(CONFIG_MAPS)

    assert time.monotonic() - begun >= 1


def test_a_persistent_failure_raises_server_busy(cluster, api):
    cluster.faults.next(status=503, times=20)

    with pytest.raises(ServerBusyError):
        api.list(CONFIG_MAPS)


def test_a_create_request_without_a_name_is_not_retried(cluster, api):
    cluster.faults.next(status=503, method="POST")

    with pytest.raises(ServerBusyError):
        api.create(CONFIG_MAPS, {**config_map(), "metadata": {"generateName": "a-"}})


def test_a_create_request_whose_response_was_lost_raises_already_exists(cluster, api):
    cluster.faults.next(reset=True, after=True, method="POST")

    with pytest.raises(AlreadyExistsError):
        api.create(CONFIG_MAPS, config_map())


def test_the_error_of_an_unreachable_server_contains_no_credentials(cluster, api):
    configuration = cluster.configuration()
    configuration.host = "http://user:hunter2@127.0.0.1:9"
    away = ApiClient(Connection(KubernetesBackendConfig(client_configuration=configuration)))

    with pytest.raises(BackendUnavailableError, match="cannot be reached to list pods") as caught:
        away.list(PODS)
    assert "hunter2" not in str(caught.value)


def test_refused_credentials_lead_to_advice_to_log_in(cluster, api):
    cluster.tokens = {"another"}

    with pytest.raises(UnauthorizedError, match="log in to the cluster again"):
        api.list(PODS)


def test_a_response_that_is_not_json_is_an_error(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one")

    with pytest.raises(StreamInterruptedError, match="is not JSON"):
        api.get_path(PODS.build_path("default", "pod", "log"))


def test_an_invalid_object_is_rejected(api):
    with pytest.raises(RejectedError):
        api.create(CONFIG_MAPS, config_map("Not_A_Name"))


def test_requests_have_a_user_agent(cluster, api):
    api.list(PODS)

    assert cluster.requests[-1].agent.startswith("trainjob-workflows/")


def test_log_lines_have_their_line_ends(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one", "two")

    assert list(api.stream_pod_log("pod")) == [b"one\n", b"two\n"]


def test_carriage_returns_do_not_end_a_line(cluster, api):
    add_pod(cluster)
    cluster.start_log("pod", [(0, b"10%\r20%\r30%")])

    assert list(api.stream_pod_log("pod")) == [b"10%\r20%\r30%\n"]


def test_the_last_lines_of_a_log_can_be_read(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one", "two", "three")

    assert list(api.stream_pod_log("pod", PodLogOptions("node", tail_lines=1))) == [b"three\n"]


def test_a_followed_log_yields_lines_as_they_arrive(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one")
    log = api.stream_pod_log("pod", PodLogOptions(follow=True))

    first = next(log)
    cluster.write_log("pod", "two")
    second = next(log)
    cluster.end_log("pod")

    assert [first, second, *log] == [b"one\n", b"two\n"]


def test_closing_a_followed_log_releases_the_connection(cluster, api):
    add_pod(cluster)
    cluster.write_log("pod", "one")
    log = api.stream_pod_log("pod", PodLogOptions(follow=True))
    next(log)

    log.close()

    assert api.list(PODS)


def test_the_log_of_a_missing_pod_raises_not_found(api):
    with pytest.raises(NotFoundError):
        next(api.stream_pod_log("pod"))


def test_a_very_long_line_comes_in_pieces(cluster, api):
    add_pod(cluster)
    cluster.start_log("pod", [(0, b"x" * 3_000_000)])

    pieces = list(api.stream_pod_log("pod"))

    assert b"".join(pieces) == b"x" * 3_000_000 + b"\n"
    assert max(map(len, pieces)) < 1_300_000


class LongLog:
    """A log whose lines are created when they are read."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        wanted = range(self.length)[index]
        return [self.line(each) for each in wanted] if isinstance(wanted, range) else self.line(wanted)

    def line(self, number):
        return number, b"%0100d" % number


def test_a_long_log_is_read_in_constant_memory(cluster, api):
    add_pod(cluster)
    cluster.start_log("pod", LongLog(100_000), ended=True)
    tracemalloc.start()

    count = sum(1 for _ in api.stream_pod_log("pod"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 100_000
    assert peak < 5_000_000


def test_threads_can_share_a_client(cluster, api):
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
