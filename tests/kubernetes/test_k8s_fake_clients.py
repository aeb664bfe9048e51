"""The official clients, sync and async, can talk to the double."""

from __future__ import annotations

import pytest

kubernetes = pytest.importorskip("kubernetes")

PLACE = ("trainer.kubeflow.org", "v1alpha1", "default", "trainjobs")
JOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "job"},
    "spec": {"runtimeRef": {"name": "python"}},
}


@pytest.fixture
def api(cluster):
    with kubernetes.client.ApiClient(cluster.configuration()) as made:
        yield made


def test_a_custom_object_is_created_patched_and_deleted(api):
    custom = kubernetes.client.CustomObjectsApi(api)
    custom.create_namespaced_custom_object(*PLACE, JOB, field_validation="Strict")
    changed = custom.patch_namespaced_custom_object(*PLACE, "job", {"spec": {"suspend": True}})
    assert changed["spec"]["suspend"] is True
    assert custom.delete_namespaced_custom_object(*PLACE, "job", propagation_policy="Foreground")["status"] == "Success"


def test_a_refusal_is_an_api_exception(api):
    with pytest.raises(kubernetes.client.ApiException) as refused:
        kubernetes.client.CustomObjectsApi(api).get_namespaced_custom_object(*PLACE, "gone")
    assert refused.value.status == 404


def test_typed_objects_are_read(cluster, api):
    cluster.add({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})
    cluster.write_log("p", "hello")
    core = kubernetes.client.CoreV1Api(api)
    assert [pod.metadata.name for pod in core.list_namespaced_pod("default").items] == ["p"]
    assert core.read_namespaced_pod_log("p", "default") == "hello\n"


def test_a_sync_watch_continues_after_its_version_has_expired(cluster, api):
    core, watch = kubernetes.client.CoreV1Api(api), kubernetes.watch.Watch()
    cluster.add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    stream = watch.stream(core.list_namespaced_config_map, "default", timeout_seconds=60)
    assert next(stream)["object"].metadata.name == "a"
    watch.stop()
    stream.close()
    cluster.compact()
    with pytest.raises(kubernetes.client.ApiException) as gone:
        next(watch.stream(core.list_namespaced_config_map, "default", resource_version="1"))
    assert gone.value.status == 410


async def test_an_async_watch_sees_what_happens(cluster):
    kubernetes_asyncio = pytest.importorskip("kubernetes_asyncio")
    configuration = kubernetes_asyncio.client.Configuration(host=cluster.url)
    configuration.api_key["BearerToken"] = f"Bearer {cluster.token}"
    async with kubernetes_asyncio.client.ApiClient(configuration) as api:
        custom = kubernetes_asyncio.client.CustomObjectsApi(api)
        cluster.add(JOB)
        async with kubernetes_asyncio.watch.Watch().stream(
            custom.list_namespaced_custom_object, *PLACE, timeout_seconds=60
        ) as events:
            event = await anext(events.__aiter__())
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "job")


def test_access_reviews_are_answered(cluster, api):
    cluster.forbid("create", "trainjobs")
    asked = {"verb": "create", "group": "trainer.kubeflow.org", "resource": "trainjobs", "namespace": "default"}
    review = kubernetes.client.V1SelfSubjectAccessReview(
        api_version="authorization.k8s.io/v1",
        kind="SelfSubjectAccessReview",
        spec=kubernetes.client.V1SelfSubjectAccessReviewSpec(resource_attributes=asked),
    )
    answer = kubernetes.client.AuthorizationV1Api(api).create_self_subject_access_review(review)
    assert answer.status.allowed is False
