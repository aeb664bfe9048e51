"""Compatibility with Trainer versions, from the CRDs of 2.0.1, 2.1.0, 2.2.1 and 2.3.0."""

from __future__ import annotations

import copy

import pytest
from fake_cluster import crds
from k8s_crds import VERSIONS, server

from trainer_core.backends.trainer_v2 import schema_compat
from trainer_core.base.errors import BackendUnavailableError, UnsupportedError

SDK = "trainer.kubeflow.org/kubeflow-sdk"
JOBS = f"runtimePatches[{SDK}].trainingRuntimeSpec.template.spec.replicatedJobs[node]"


def a_patch(pod=None, *, pod_metadata=None, job_metadata=None, metadata=None, manager=SDK):
    """A patch of the pods of ``node`` and of the surrounding metadata."""
    template = {"metadata": pod_metadata, "spec": pod}
    job = {"metadata": job_metadata, "spec": {"template": {key: part for key, part in template.items() if part}}}
    jobs = [{"name": "node", "template": {key: part for key, part in job.items() if part}}]
    jobset = {"metadata": metadata, "spec": {"replicatedJobs": jobs}}
    return {
        "manager": manager,
        "trainingRuntimeSpec": {"template": {key: part for key, part in jobset.items() if part}},
    }


def openapi(version):
    """The OpenAPI document of the group as an API server returns it, with TrainJobList before TrainJob."""
    mark = {"group": "trainer.kubeflow.org", "version": "v1alpha1"}
    one = {**crds.schema("TrainJob", version), "x-kubernetes-group-version-kind": [{**mark, "kind": "TrainJob"}]}
    many = {"properties": {}, "x-kubernetes-group-version-kind": [{**mark, "kind": "TrainJobList"}]}
    name = "org.kubeflow.trainer.v1alpha1.TrainJob"
    return {"openapi": "3.0.0", "components": {"schemas": {f"{name}List": many, "Status": {}, name: one}}}


@pytest.mark.parametrize(
    ("version", "override"),
    [
        ("2.0", "podSpecOverrides"),
        ("2.1", "podTemplateOverrides"),
        ("2.2", "runtimePatches"),
        ("2.3", "runtimePatches"),
    ],
)
def test_each_trainer_version_has_its_override_field(version, override):
    assert server(version).override_field == override


@pytest.mark.parametrize(
    ("attribute", "since"),
    [
        ("supports_active_deadline", "2.2"),
        ("supports_termination_grace_period", "2.3"),
        ("requires_initializer_mount", "2.3"),
    ],
)
def test_each_feature_exists_since_its_trainer_version(attribute, since):
    assert [version for version in VERSIONS if getattr(server(version), attribute)] == list(
        VERSIONS[VERSIONS.index(since) :]
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_openapi_document_and_crd_give_the_same_schema(version):
    assert schema_compat.parse_openapi(openapi(version)) == server(version)


def test_a_crd_version_that_is_not_served_is_refused():
    unserved = copy.deepcopy(crds.definition("TrainJob"))
    unserved["spec"]["versions"][0]["served"] = False
    with pytest.raises(BackendUnavailableError, match=r"does not serve trainer\.kubeflow\.org/v1alpha1 TrainJob"):
        schema_compat.parse_crd(unserved)


def test_an_openapi_document_without_trainjob_is_refused():
    with pytest.raises(BackendUnavailableError, match="install Kubeflow Trainer"):
        schema_compat.parse_openapi({"components": {"schemas": {"Status": {}}}})


@pytest.mark.parametrize("version", ["2.2", "2.3"])
def test_trainer_2_2_and_later_get_runtime_patches_unchanged(version):
    patches = [a_patch({"nodeSelector": {"zone": "a"}}), a_patch({"serviceAccountName": "x"}, manager="a.b/c")]
    assert schema_compat.render_overrides(patches, server(version)) == {"runtimePatches": patches}


def test_trainer_2_1_gets_pod_template_overrides():
    patch = a_patch({"nodeSelector": {"zone": "a"}}, pod_metadata={"labels": {"team": "vision"}})
    assert schema_compat.render_overrides([patch], server("2.1")) == {
        "podTemplateOverrides": [
            {
                "targetJobs": [{"name": "node"}],
                "metadata": {"labels": {"team": "vision"}},
                "spec": {"nodeSelector": {"zone": "a"}},
            }
        ]
    }


def test_trainer_2_0_gets_pod_spec_overrides():
    patch = a_patch({"nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]})
    assert schema_compat.render_overrides([patch], server("2.0")) == {
        "podSpecOverrides": [
            {
                "targetJobs": [{"name": "node"}],
                "nodeSelector": {"zone": "a"},
                "tolerations": [{"operator": "Exists"}],
            }
        ]
    }


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_jobset_labels_become_spec_labels_on_older_versions(version):
    patch = a_patch(metadata={"labels": {"team": "vision"}, "annotations": {"note": "x"}})
    assert schema_compat.render_overrides([patch], server(version)) == {
        "labels": {"team": "vision"},
        "annotations": {"note": "x"},
    }


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_patches_of_several_managers_keep_their_order_on_older_versions(version):
    patches = [a_patch({"serviceAccountName": name}, manager=f"{name}.example/x") for name in ("one", "two")]
    (field,) = schema_compat.render_overrides(patches, server(version)).values()
    assert [entry.get("spec", entry)["serviceAccountName"] for entry in field] == ["one", "two"]


@pytest.mark.parametrize(
    ("version", "patch", "path"),
    [
        ("2.0", a_patch(pod_metadata={"labels": {"a": "b"}}), f"{JOBS}.template.spec.template.metadata"),
        ("2.0", a_patch({"affinity": {}}), f"{JOBS}.template.spec.template.spec.affinity"),
        ("2.0", a_patch({"imagePullSecrets": []}), f"{JOBS}.template.spec.template.spec.imagePullSecrets"),
        ("2.1", a_patch(job_metadata={"labels": {"a": "b"}}), f"{JOBS}.template.metadata"),
        ("2.1", a_patch({"securityContext": {}}), f"{JOBS}.template.spec.template.spec.securityContext"),
        (
            "2.1",
            a_patch({"containers": [{"name": "side", "securityContext": {}}]}),
            f"{JOBS}.template.spec.template.spec.containers[side].securityContext",
        ),
        (
            "2.2",
            a_patch({"terminationGracePeriodSeconds": 60}),
            f"{JOBS}.template.spec.template.spec.terminationGracePeriodSeconds",
        ),
        ("2.3", a_patch({"hostNetwork": True}), f"{JOBS}.template.spec.template.spec.hostNetwork"),
    ],
)
def test_an_unsupported_field_is_refused_with_its_path(version, patch, path):
    with pytest.raises(UnsupportedError) as refused:
        schema_compat.render_overrides([patch], server(version))
    assert path in str(refused.value)


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_an_unknown_patch_field_is_refused_on_older_versions(version):
    patch = a_patch({"serviceAccountName": "x"})
    patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["replicas"] = 2
    with pytest.raises(UnsupportedError, match=r"replicatedJobs\[node\]\.replicas"):
        schema_compat.render_overrides([patch], server(version))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"trainer": {"args": ["x"] * 129}}, r"spec\.trainer\.args has 129 entries; this cluster accepts at most 128"),
        ({"trainer": {"image": "x" * 501}}, r"spec\.trainer\.image has a text of 501 characters"),
        ({"trainer": {"args": ["x" * 65_537]}}, r"spec\.trainer\.args has a text of 65537 characters"),
        ({"trainer": {"numNodes": 2**31}}, r"spec\.trainer\.numNodes must be at most 2147483647"),
        ({"activeDeadlineSeconds": 0}, r"spec\.activeDeadlineSeconds must be at least 1"),
        ({"trainer": {"env": [{"name": "A"}, {"name": "A"}]}}, r"spec\.trainer\.env has two entries with name 'A'"),
        ({"runtimePatches": [{"manager": "a.b/c"}] * 2}, r"spec\.runtimePatches has two entries with manager 'a\.b/c'"),
        ({"runtimePatches": [{"manager": f"a.b/{n}"} for n in range(17)]}, r"has 17 entries; .* at most 16"),
        (
            {"trainer": {"resourcesPerNode": {"limit": {}}}},
            r"spec\.trainer\.resourcesPerNode\.limit: .* no such field; did you mean limits\?",
        ),
    ],
)
def test_a_value_over_a_limit_of_the_crd_is_refused_with_its_path(spec, words):
    with pytest.raises(UnsupportedError, match=words):
        schema_compat.check_spec(spec, server("2.2"))


def test_two_mounts_of_one_volume_are_refused():
    mounts = [{"name": "data", "mountPath": path} for path in ("/a", "/b")]
    patch = a_patch({"containers": [{"name": "node", "volumeMounts": mounts}]})
    with pytest.raises(UnsupportedError, match=r"containers\[node\]\.volumeMounts has two entries with name 'data'"):
        schema_compat.render_overrides([patch], server("2.3"))


def test_longer_arguments_are_accepted_if_the_schema_allows_them():
    schema_compat.check_spec({"trainer": {"args": ["x" * 65_537]}}, server("2.3"))


def test_label_and_selector_keys_are_not_restricted():
    schema_compat.check_spec({"trainer": {"resourcesPerNode": {"limits": {"example.com/device": "1"}}}}, server("2.3"))
