"""The double evicts pods as API servers do, respects a cordoned node, and mounts claims where variables name them."""

from __future__ import annotations

import json

import pytest
from fake_cluster import Cluster

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
NODE = "/api/v1/nodes/node-a"
FOREVER = "import time; print('it runs', flush=True); time.sleep(3600)"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(grace=0.2) as made:
        yield made


@pytest.fixture
def start(cluster, client, request):
    """Start a Job with a pod, and return a function that finds the newest pod."""

    def start(code=FOREVER, **pod):
        name = f"job-{abs(hash(request.node.nodeid)):x}"[:20]
        container = {"name": "node", "image": "x", "command": ["python3", "-c", code], **pod.pop("container", {})}
        template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **pod}}
        template["spec"]["restartPolicy"] = "Never"
        spec = {"completions": 1, "parallelism": 1, "template": template}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        status, answer = client.ask("POST", JOBS, body)
        assert status == 201, answer

        def find(phase="Running"):
            mine = [raw for raw in cluster.objects("pods") if raw["metadata"]["labels"].get("app") == name]
            return next((raw for raw in mine if raw["status"]["phase"] == phase), None)

        return find

    return start


def evict(client, pod, name=None, version="policy/v1"):
    """Post an Eviction for a pod, and return the answer."""
    body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name or pod}}
    return client.send("POST", f"{PODS}/{pod}/eviction", body)


def test_an_evicted_pod_is_marked_ended_and_replaced(cluster, client, start):
    find = start()
    running = cluster.until(find)["metadata"]
    pod = running["name"]
    assert evict(client, pod).status == 201
    # Its process may have ended by now, and then it is gone: the history of the cluster has what came before.
    history = client.watch(f"{PODS}?watch=true&resourceVersion={running['resourceVersion']}")
    mine = (event["object"] for event in history if event["object"]["metadata"]["name"] == pod)
    evicted = next(raw for raw in mine if "deletionTimestamp" in raw["metadata"])
    assert [each["reason"] for each in evicted["status"]["conditions"] if each["type"] == "DisruptionTarget"] == [
        "EvictionByEvictionAPI"
    ]
    cluster.until(lambda: cluster.get("pods", pod) is None)
    assert cluster.until(find)["metadata"]["name"] != pod


def test_a_disruption_budget_protects_a_pod_that_runs(cluster, client, start):
    pod = cluster.until(start())["metadata"]
    selector = {"matchLabels": {"app": pod["labels"]["app"]}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"selector": selector}}
    cluster.add({**budget, "metadata": {"name": "one"}})

    answer = evict(client, pod["name"])
    assert (answer.status, json.loads(answer.data)["reason"]) == (429, "TooManyRequests")
    assert answer.headers["Retry-After"] == "10"
    cluster.update_status("poddisruptionbudgets", "one", {"disruptionsAllowed": 1})
    cluster.add({**budget, "metadata": {"name": "two"}})
    assert evict(client, pod["name"]).status == 500
    cluster.delete("poddisruptionbudgets", "two")
    assert evict(client, pod["name"]).status == 201


def test_an_eviction_of_another_name_or_version_is_refused(client, start, cluster):
    pod = cluster.until(start())["metadata"]["name"]
    assert evict(client, pod, name="another").status == 400
    assert evict(client, pod, version="policy/v1beta1").status == 400
    assert evict(client, "absent").status == 404


def test_no_pod_runs_on_a_cordoned_node(cluster, client, start):
    client.ask("PATCH", NODE, {"spec": {"unschedulable": True}})
    find = start()

    def is_unschedulable():
        conditions = (find("Pending") or {"status": {}})["status"].get("conditions") or ()
        return [each["reason"] for each in conditions if each["status"] == "False"] == ["Unschedulable"]

    cluster.until(is_unschedulable)
    client.ask("PATCH", NODE, {"spec": {"unschedulable": None}})
    assert cluster.until(find)["spec"]["nodeName"] == "node-a"


def test_the_folder_and_the_settings_of_checkpoints_are_in_the_claim(cluster, start):
    code = "import json, os, pathlib as p; p.Path(os.environ['TRAINJOB_CHECKPOINT_PATH']).mkdir(parents=True); "
    code += "assert p.Path(json.loads(os.environ['TRAINJOB_CHECKPOINTS'])['load_paths'][0], 'g-0').is_dir()"
    values = {
        "TRAINJOB_CHECKPOINT_PATH": "/checkpoints/runs/g-0",
        "TRAINJOB_CHECKPOINTS": '{"load_paths": ["/checkpoints/runs"]}',
    }
    container = {
        "env": [{"name": name, "value": value} for name, value in values.items()],
        "volumeMounts": [{"name": "c", "mountPath": "/checkpoints"}],
    }
    volumes = [{"name": "c", "persistentVolumeClaim": {"claimName": "claim"}}]
    find = start(code, container=container, volumes=volumes)
    assert cluster.until(lambda: find("Succeeded"))
    assert (cluster.claims_folder() / "claim" / "runs" / "g-0").is_dir()
