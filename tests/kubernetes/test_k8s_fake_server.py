"""The double of the API server answers as an API server does: objects, lists, patches, deletions, refusals."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from fake_cluster.raw_client import RawClient

JOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs"
PODS = "/api/v1/namespaces/default/pods"
CONFIGS = "/api/v1/namespaces/default/configmaps"


def config(name: str = "one", **metadata) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"a": "1"}}


def pod(name: str, **more) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "node"}]},
        **more,
    }


def owned(name: str, owner: dict) -> dict:
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return config(name, ownerReferences=[{**reference, "blockOwnerDeletion": True}])


def test_what_is_created_gets_a_uid_a_version_and_a_time(client):
    status, made = client.ask("POST", CONFIGS, config())
    assert status == 201
    assert {"uid", "resourceVersion", "creationTimestamp", "namespace"} <= made["metadata"].keys()


def test_a_name_is_made_up_where_only_its_beginning_is_given(client):
    raw = config()
    raw["metadata"] = {"generateName": "job-"}
    name = client.ask("POST", CONFIGS, raw)[1]["metadata"]["name"]
    assert name.startswith("job-")
    assert len(name) == len("job-") + 5


def test_a_taken_name_is_refused_as_a_server_refuses_it(client):
    client.ask("POST", CONFIGS, config())
    status, body = client.ask("POST", CONFIGS, config())
    assert (status, body["kind"], body["reason"]) == (409, "Status", "AlreadyExists")
    assert body["message"] == 'configmaps "one" already exists'


def test_what_is_not_there_is_not_found(client):
    status, body = client.ask("GET", f"{JOBS}/gone")
    assert (status, body["reason"]) == (404, "NotFound")
    assert body["message"] == 'trainjobs.trainer.kubeflow.org "gone" not found'
    assert body["details"] == {"name": "gone", "group": "trainer.kubeflow.org", "kind": "trainjobs"}


def test_a_namespace_that_is_not_there_takes_no_objects(client):
    status, body = client.ask("POST", CONFIGS.replace("default", "nowhere"), config())
    assert (status, body["message"]) == (404, 'namespaces "nowhere" not found')


def test_a_path_that_means_nothing_is_answered_in_plain_text(client):
    answer = client.send("GET", "/apis/unknown.example/v1/things")
    assert (answer.status, answer.data) == (404, b"404 page not found\n")


def test_a_dry_run_keeps_nothing(client):
    assert client.ask("POST", f"{CONFIGS}?dryRun=All", config())[0] == 201
    assert client.ask("GET", f"{CONFIGS}/one")[0] == 404


def test_a_dry_run_says_that_a_name_is_taken(client):
    client.ask("POST", CONFIGS, config())
    assert client.ask("POST", f"{CONFIGS}?dryRun=All", config())[0] == 409


def test_bad_names_and_labels_are_invalid(client):
    assert client.ask("POST", CONFIGS, config("No_Name"))[0] == 422
    status, body = client.ask("POST", CONFIGS, config(labels={"team": "not a value"}))
    assert (status, body["reason"], body["details"]["causes"][0]["field"]) == (422, "Invalid", "metadata.labels")


def test_annotations_have_a_limit(client):
    status, body = client.ask("POST", CONFIGS, config(annotations={"big": "x" * 262_144}))
    assert (status, body["details"]["causes"][0]["reason"]) == (422, "FieldValueTooLong")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("labelSelector=team=a", ["one"]),
        ("labelSelector=team!=a", ["three", "two"]),
        ("labelSelector=team in (a, b),size", ["two"]),
        ("labelSelector=team notin (a),team", ["two"]),
        ("labelSelector=!team", ["three"]),
        ("fieldSelector=metadata.name=two", ["two"]),
    ],
)
def test_selectors_choose(client, query, found):
    client.ask("POST", CONFIGS, config("one", labels={"team": "a"}))
    client.ask("POST", CONFIGS, config("two", labels={"team": "b", "size": "1"}))
    client.ask("POST", CONFIGS, config("three"))
    listed = client.ask("GET", f"{CONFIGS}?{query.replace(' ', '%20')}")[1]
    assert [item["metadata"]["name"] for item in listed["items"]] == found


def test_a_selector_that_cannot_be_read_is_a_bad_request(client):
    assert client.ask("GET", f"{CONFIGS}?labelSelector=a%20b")[0] == 400


def test_all_namespaces_can_be_listed(cluster, client):
    cluster.add(config("one", namespace="team-a"))
    cluster.add(config("two", namespace="team-b"))
    items = client.ask("GET", "/api/v1/configmaps")[1]["items"]
    assert [item["metadata"]["namespace"] for item in items] == ["team-a", "team-b"]


def test_pages_show_the_moment_of_the_first_one(cluster, client):
    for name in "abcde":
        cluster.add(config(name))
    first = client.ask("GET", f"{CONFIGS}?limit=2")[1]
    cluster.delete("ConfigMap", "c")
    cluster.add(config("ca"))
    second = client.ask("GET", f"{CONFIGS}?limit=2&continue={first['metadata']['continue']}")[1]
    third = client.ask("GET", f"{CONFIGS}?limit=2&continue={second['metadata']['continue']}")[1]
    names = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert names == list("abcde")
    assert first["metadata"]["remainingItemCount"] == 3
    assert {page["metadata"]["resourceVersion"] for page in (first, second, third)} == {
        first["metadata"]["resourceVersion"]
    }
    assert "continue" not in third["metadata"]


def test_a_page_token_expires(cluster, client):
    for name in "abc":
        cluster.add(config(name))
    token = client.ask("GET", f"{CONFIGS}?limit=2")[1]["metadata"]["continue"]
    cluster.add(config("later"))
    cluster.compact()
    status, body = client.ask("GET", f"{CONFIGS}?limit=2&continue={token}")
    assert (status, body["reason"]) == (410, "Expired")


def test_a_merge_patch_sets_and_removes(client):
    client.ask("POST", CONFIGS, config(labels={"a": "1", "b": "2"}))
    patch = {"metadata": {"labels": {"a": None, "c": "3"}}, "data": {"x": "y"}}
    status, body = client.ask("PATCH", f"{CONFIGS}/one", patch)
    assert (status, body["metadata"]["labels"], body["data"]) == (200, {"b": "2", "c": "3"}, {"a": "1", "x": "y"})


def test_a_json_patch_tests_before_it_changes(client):
    client.ask("POST", CONFIGS, config())
    operations = [{"op": "test", "path": "/data/a", "value": "2"}, {"op": "remove", "path": "/data/a"}]
    assert client.ask("PATCH", f"{CONFIGS}/one", operations, "application/json-patch+json")[0] == 422
    operations[0]["value"] = "1"
    assert client.ask("PATCH", f"{CONFIGS}/one", operations, "application/json-patch+json")[1]["data"] == {}


def test_apply_creates_and_updates(client):
    path = f"{CONFIGS}/one?fieldManager=me"
    assert client.ask("PATCH", path, config(), "application/apply-patch+yaml")[0] == 201
    again = {**config(), "data": {"b": "2"}}
    status, body = client.ask("PATCH", path, again, "application/apply-patch+yaml")
    assert (status, body["data"]) == (200, {"a": "1", "b": "2"})


def test_apply_wants_a_manager(client):
    assert client.ask("PATCH", f"{CONFIGS}/one", config(), "application/apply-patch+yaml")[0] == 422


def test_a_strategic_patch_of_a_custom_resource_is_not_understood(client):
    client.ask(
        "POST",
        JOBS,
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "a"},
            "spec": {"runtimeRef": {"name": "python"}},
        },
    )
    status, body = client.ask("PATCH", f"{JOBS}/a", {}, "application/strategic-merge-patch+json")
    assert (status, body["reason"]) == (415, "UnsupportedMediaType")


def test_a_change_of_an_older_version_is_a_conflict(client):
    old = client.ask("POST", CONFIGS, config())[1]
    client.ask("PATCH", f"{CONFIGS}/one", {"data": {"a": "2"}})
    status, body = client.ask("PUT", f"{CONFIGS}/one", old)
    assert (status, body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in body["message"]


def test_a_change_that_changes_nothing_makes_no_version(client):
    made = client.ask("POST", CONFIGS, config())[1]
    assert client.ask("PATCH", f"{CONFIGS}/one", {"data": {"a": "1"}})[1] == made


def test_status_is_written_apart(cluster, client):
    cluster.add(pod("p", status={"phase": "Pending"}))
    client.ask("PATCH", f"{PODS}/p", {"status": {"phase": "Failed"}})
    assert cluster.get("Pod", "p")["status"] == {"phase": "Pending"}
    client.ask("PATCH", f"{PODS}/p/status", {"status": {"phase": "Failed"}, "spec": {"nodeName": "x"}})
    assert cluster.get("Pod", "p")["status"] == {"phase": "Failed"}
    assert "nodeName" not in cluster.get("Pod", "p")["spec"]


def test_deleting_answers_with_a_status_and_twice_is_not_found(client):
    client.ask("POST", CONFIGS, config())
    status, body = client.ask("DELETE", f"{CONFIGS}/one")
    assert (status, body["kind"], body["status"]) == (200, "Status", "Success")
    assert client.ask("DELETE", f"{CONFIGS}/one")[0] == 404


def test_a_deletion_of_another_object_of_the_name_is_a_conflict(client):
    client.ask("POST", CONFIGS, config())
    status, body = client.ask("DELETE", f"{CONFIGS}/one", {"preconditions": {"uid": "another"}})
    assert (status, body["reason"]) == (409, "Conflict")
    assert "The object might have been deleted and then recreated" in body["message"]
    assert client.ask("GET", f"{CONFIGS}/one")[0] == 200


def test_what_an_object_owns_goes_with_it(cluster, client):
    owner = cluster.add(config("owner"))
    cluster.add(owned("child", owner))
    client.ask("DELETE", f"{CONFIGS}/owner")
    assert cluster.objects("ConfigMap") == []


def test_orphans_stay(cluster, client):
    owner = cluster.add(config("owner"))
    cluster.add(owned("child", owner))
    client.ask("DELETE", f"{CONFIGS}/owner", {"propagationPolicy": "Orphan"})
    assert cluster.get("ConfigMap", "child")["metadata"]["ownerReferences"] == []


def test_in_the_foreground_an_owner_waits_for_what_it_owns(cluster, client):
    owner = cluster.add(config("owner"))
    child = owned("child", owner)
    child["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.add(child)
    status, body = client.ask("DELETE", f"{CONFIGS}/owner", {"propagationPolicy": "Foreground"})
    assert (status, body["metadata"]["finalizers"]) == (200, ["foregroundDeletion"])
    assert body["metadata"]["deletionTimestamp"]
    client.ask("PATCH", f"{CONFIGS}/child", {"metadata": {"finalizers": None}})
    assert cluster.objects("ConfigMap") == []


def test_a_request_without_a_valid_token_is_refused(cluster, client):
    cluster.tokens = {"another"}
    status, body = client.ask("GET", CONFIGS)
    assert (status, body["message"]) == (401, "Unauthorized")


def test_a_permission_taken_away_is_refused_as_rbac_does_it(cluster, client):
    cluster.forbid("list", "pods")
    status, body = client.ask("GET", PODS)
    assert (status, body["reason"]) == (403, "Forbidden")
    assert body["message"] == (
        'pods is forbidden: User "system:serviceaccount:default:worker" cannot list resource "pods" in API group "" '
        'in the namespace "default"'
    )
    cluster.allow("list", "pods")
    assert client.ask("GET", PODS)[0] == 200


def test_a_review_says_what_is_allowed(cluster, client):
    cluster.forbid("get", "pods/log", "default")
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = {"verb": "get", "resource": "pods", "subresource": "log", "namespace": "default"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    assert client.ask("POST", path, review)[1]["status"] == {"allowed": False}
    asked["namespace"] = "other"
    assert client.ask("POST", path, review)[1]["status"] == {"allowed": True}


def test_requests_are_remembered_and_counted(cluster, client):
    client.ask("GET", f"{PODS}?limit=5")
    assert cluster.counts["list pods"] == 1
    assert (cluster.requests[-1].verb, cluster.requests[-1].query) == ("list", {"limit": "5"})
    cluster.forget_requests()
    assert cluster.requests == []


def test_an_event_is_the_same_in_both_apis(client):
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"kind": "TrainJob", "name": "a"},
        "note": "no",
        "reason": "TrainJobResourcesCreationFailed",
    }
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert client.ask("POST", path, event)[1]["note"] == "no"
    items = client.ask("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=a")[1]["items"]
    assert (items[0]["message"], items[0]["firstTimestamp"], items[0]["apiVersion"]) == ("no", None, "v1")


def test_the_server_lists_its_version_groups_and_resources(cluster, client):
    assert client.ask("GET", "/version")[1]["gitVersion"].startswith("v1.")
    assert "trainer.kubeflow.org" in [group["name"] for group in client.ask("GET", "/apis")[1]["groups"]]
    resources = client.ask("GET", "/apis/trainer.kubeflow.org/v1alpha1")[1]["resources"]
    assert {"trainjobs", "trainjobs/status", "clustertrainingruntimes"} <= {one["name"] for one in resources}
    assert "apis/trainer.kubeflow.org/v1alpha1" in client.ask("GET", "/openapi/v3")[1]["paths"]


def test_a_kubeconfig_leads_to_it(cluster, tmp_path: Path):
    from kubernetes.config import new_client_from_config

    with new_client_from_config(str(cluster.kubeconfig(tmp_path / "config"))) as api:
        from kubernetes.client import VersionApi

        assert VersionApi(api).get_code().major == "1"


def test_a_secret_is_kept_as_it_is(client):
    data = {"token": base64.b64encode(b"x").decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": data}
    assert client.ask("POST", "/api/v1/namespaces/default/secrets", secret)[1]["data"] == data


def test_a_body_that_is_too_large_is_refused(client):
    assert client.send("POST", CONFIGS, json.dumps(config()).encode() + b" " * 3_200_000).status == 413


def test_a_started_process_prints_where_it_is():
    import subprocess
    import sys

    folder = Path(__file__).parents[1] / "fakes"
    command = [sys.executable, "-m", "fake_cluster", "--bare"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        with RawClient(process.stdout.readline().strip()) as client:
            assert client.ask("GET", "/version")[0] == 200
        process.communicate()
        assert process.returncode == 0
