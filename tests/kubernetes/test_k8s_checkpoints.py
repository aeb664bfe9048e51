"""The option Checkpoints: its values, what it renders on clusters, and what is refused before anything is created."""

from __future__ import annotations

import json

import pytest
from fake_cluster import crds
from k8s_crds import runtime, server
from k8s_scene import a_request, a_stage

from trainer_core import Checkpoints, KubernetesBackendConfig, LocalProcessBackendConfig, Owner, TrainJobRequest
from trainer_core.backends.runai import validation as runai_validation
from trainer_core.backends.runai.runtime_templates import BUILT_IN_TEMPLATES
from trainer_core.backends.trainer_v2 import manifest
from trainer_core.base.errors import UnsupportedError
from trainer_core.definition.request_builder import parse_options
from trainer_core.model.checkpoint_location import build_scope
from trainer_core.node import env
from trainer_core.packaging import serializer

CLAIM = {"uri": "pvc://claim/runs"}
IMAGE = {"kind": "container", "image": "x:1"}


def build_request(checkpoints=None, **fields):
    settings = {"name": "job", "trainer": IMAGE, "checkpoints": checkpoints or CLAIM}
    return TrainJobRequest.parse({**settings, **fields})


def render(request, version="2.3"):
    return manifest.render_trainjob(request, runtime("torch-distributed"), server(version), "team", 0)


def get_pod(job):
    patch = (job["spec"].get("runtimePatches") or job["spec"].get("podTemplateOverrides"))[0]
    spec = patch.get("trainingRuntimeSpec")
    return (
        spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"] if spec else patch["spec"]
    )


def get_env(job):
    return {each["name"]: each["value"] for each in job["spec"]["trainer"]["env"]}


@pytest.mark.parametrize("version", ["2.1", "2.3"])
def test_the_claim_is_mounted_and_the_nodes_know_their_folder(version):
    owner = Owner(key="dag/run/task", slug="train", generation="2")
    job = render(build_request(owner=owner.model_dump()), version)

    pod = get_pod(job)
    assert crds.list_violations(job, version) == []
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "claim"}
    assert pod["containers"][0]["volumeMounts"] == [{"name": "trainjob-checkpoints", "mountPath": "/checkpoints"}]
    assert "terminationGracePeriodSeconds" not in pod
    variables = get_env(job)
    assert variables[env.CHECKPOINT_PATH].startswith("/checkpoints/runs/train-")
    assert variables[env.CHECKPOINT_PATH].endswith("/g-2")
    settings = json.loads(variables[env.CHECKPOINTS])
    assert (settings["grace"], settings["overlaps"]) == (30, True)


def test_another_grace_needs_trainer_2_3():
    request = build_request({**CLAIM, "grace": 120})
    assert get_pod(render(request))["terminationGracePeriodSeconds"] == 120
    with pytest.raises(UnsupportedError, match="terminationGracePeriodSeconds"):
        render(request, "2.1")
    with pytest.raises(UnsupportedError, match="Checkpoints grace: Run:ai has no field for it"):
        runai_validation.check_request(request, BUILT_IN_TEMPLATES["torch-distributed"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"checkpoints": {"keep": 1}}, "this backend has no default place; set uri='pvc://<claim>'"),
        ({"checkpoints": {"uri": "file:///data"}}, "uri: file:// is not supported on this backend; use pvc://"),
        ({"checkpoints": {**CLAIM, "load": "pvc://other/runs"}}, "load: pvc://other/runs is in another claim"),
        ({"trainer": None}, "Checkpoints needs a function or an image"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(fields, message):
    with pytest.raises(UnsupportedError, match=message):
        render(build_request(**fields))


def build_claim(*modes):
    spec = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "claim", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def test_a_claim_that_one_node_can_mount_is_refused_for_several_nodes_before_anything_is_created():
    with a_stage("runs") as (cluster, client):
        cluster.add(build_claim("ReadWriteOnce"))
        several = {"runtime": "torch-distributed", "checkpoints": CLAIM, "trainer": {**IMAGE, "num_nodes": 2}}
        for refuse in (client.submit, client.dry_run):
            with pytest.raises(UnsupportedError, match="claim 'claim' is ReadWriteOnce, which one node"):
                refuse(a_request(**several))
        assert client.list_jobs() == []
        client.submit(a_request("alone", **{**several, "trainer": {**IMAGE, "num_nodes": 1}}))
        client.submit(a_request("bucket", **{**several, "checkpoints": {"uri": "s3://bucket"}}))
        cluster.forbid("get", "persistentvolumeclaims")
        client.submit(a_request("unknown", **several))


def test_a_claim_that_all_nodes_can_mount_is_accepted_for_several_nodes():
    with a_stage("runs") as (cluster, client):
        cluster.add(build_claim("ReadWriteOnce", "ReadWriteMany"))
        several = {"runtime": "torch-distributed", "checkpoints": CLAIM, "trainer": {**IMAGE, "num_nodes": 2}}
        assert client.submit(a_request(**several)).name == "job"


def test_a_bucket_needs_no_mount_and_its_programs_travel_with_the_function():
    def leave():
        return None

    trainer = {"kind": "custom", "code": serializer.package(leave)}
    bucket = {"uri": "s3://bucket/runs", "load": "s3://other/run"}
    small, job = render(build_request(trainer=trainer)), render(build_request(bucket, trainer=trainer))

    variables = get_env(job)
    assert variables[env.CHECKPOINT_PATH].startswith("s3://bucket/runs/job-")
    assert json.loads(variables[env.CHECKPOINTS])["load_paths"] == ["s3://other/run"]
    assert "volumes" not in json.dumps(job)
    sizes = [sum(map(len, each["spec"]["trainer"]["args"])) for each in (small, job)]
    assert sizes[0] < 56_000 < sizes[1] < 68_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uri": "gs://bucket"}, "uri must be pvc://"),
        ({"uri": "pvc://claim/../other"}, "uri must be pvc://"),
        ({"uri": "s3://key:secret@bucket"}, "uri must be pvc://"),
        ({"load": "newest"}, "load must be fresh, owner, never or a URI"),
        ({"keep": 0}, "keep must be a whole number of at least 1"),
        ({"after": "some"}, "after"),
        ({"every": 3}, "every"),
        ({"keep_best": "-f1"}, "write keep_best='f1', mode='max'"),
        ({"keep_best": "accuracy"}, "'accuracy' usually grows .* write keep_best='accuracy', mode='max'"),
        ({"keep_best": "eval/macroF1"}, "write keep_best='eval/macroF1', mode='max'"),
        ({"keep_best": "loss", "mode": "best"}, "Checkpoints mode must be"),
        ({"mode": "max"}, "Checkpoints mode is that of a metric; set keep_best"),
    ],
)
def test_a_wrong_setting_is_refused_where_the_job_is_defined(settings, message):
    with pytest.raises(ValueError, match=message) as refused:
        parse_options([{"Checkpoints": settings}])
    assert "secret" not in str(refused.value)


def test_plain_data_is_the_option_and_templates_are_rendered_later():
    options = parse_options([{"Checkpoints": {"uri": "{{ var.value.place }}", "keep_best": "loss"}}, "Checkpoints"])
    assert options == [Checkpoints(uri="{{ var.value.place }}", keep_best="loss"), Checkpoints()]


def test_the_best_checkpoint_has_the_mode_of_promote():
    for settings in ({"keep_best": "accuracy", "mode": "max"}, {"keep_best": "top5_error"}, {"keep_best": "loss"}):
        (option,) = parse_options([{"Checkpoints": settings}])
        assert (option.keep_best, option.mode) == (settings["keep_best"], settings.get("mode"))


def test_with_never_each_attempt_has_its_own_folder_which_a_later_run_finds():
    owner = {"key": "a", "slug": "t", "generation": "3"}
    first, second = (
        build_scope(build_request({**CLAIM, "load": "never"}, owner=owner).with_checkpoints_nonce(nonce * 10))
        for nonce in "ab"
    )
    shared = build_scope(build_request(owner=owner).with_checkpoints_nonce("c" * 10))
    assert (first, second) == (f"{shared}-{'a' * 10}", f"{shared}-{'b' * 10}")


def test_each_owner_generation_and_name_has_its_own_folder():
    owners = [("a", "0"), ("a", "1"), ("b", "0"), ("a", None), ("a", "run of today")]
    requests = [build_request(owner={"key": key, "slug": "t", "generation": g}) for key, g in owners]
    requests += [build_request().with_checkpoints_nonce(nonce * 10) for nonce in "ab"]
    scopes = [build_scope(request) for request in requests]
    # An owner without a generation has the first one.
    assert scopes.pop(3) == scopes[0]
    assert len(set(scopes)) == len(scopes)


def test_the_nonce_of_a_job_without_an_owner_is_no_part_of_its_work():
    request = build_request()
    created = request.with_checkpoints_nonce("0123456789")
    assert created.fingerprint() == request.fingerprint()
    assert created.list_differences(request) == []
    assert TrainJobRequest.from_json(created.to_json()).policy.checkpoints.nonce == "0123456789"


def test_a_configuration_names_the_place():
    assert KubernetesBackendConfig(checkpoints_uri="pvc://claim").checkpoints_uri == "pvc://claim"
    assert build_request({"keep": 1}).with_checkpoints_uri("pvc://c").policy.checkpoints.uri == "pvc://c"
    assert build_request().with_checkpoints_uri("pvc://c").policy.checkpoints.uri == CLAIM["uri"]
    with pytest.raises(ValueError, match="checkpoints_uri"):
        LocalProcessBackendConfig(checkpoints_uri="/data")
