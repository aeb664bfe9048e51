"""DistributedConfig: attributes, types and defaults of Kale's class, and conversion of objects and dicts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import ClassVar

import pytest
from kubernetes.client import (
    V1Affinity,
    V1EnvFromSource,
    V1EnvVar,
    V1EnvVarSource,
    V1NodeAffinity,
    V1ObjectFieldSelector,
    V1SecretEnvSource,
    V1Toleration,
)

from trainer_core import DistributedConfig
from trainer_core.backends.trainer_v2.backend import KubernetesBackend
from trainer_core.client import backend_for
from trainer_core.definition import request_builder
from trainer_core.definition.request_builder import parse_options
from trainer_core.model.request import TrainJobRequest

#: The example of the reference.
POD_IP = {"name": "MY_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
POD_IP_OBJECT = V1EnvVar(
    name="MY_POD_IP", value_from=V1EnvVarSource(field_ref=V1ObjectFieldSelector(field_path="status.podIP"))
)
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}]
        }
    }
}
POLICY = {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 300, "suspend": True, "backoffLimit": 3}


class SchedulingPolicy:
    """A model of the kubeflow-training package: attributes and a map to the field names of the API."""

    attribute_map: ClassVar = {"queue": "queue", "min_available": "minAvailable"}

    def __init__(self, queue=None, min_available=None):
        self.queue = queue
        self.min_available = min_available


class RunPolicy:
    attribute_map: ClassVar = {
        "clean_pod_policy": "cleanPodPolicy",
        "backoff_limit": "backoffLimit",
        "scheduling_policy": "schedulingPolicy",
    }

    def __init__(self, clean_pod_policy=None, backoff_limit=None, scheduling_policy=None):
        self.clean_pod_policy = clean_pod_policy
        self.backoff_limit = backoff_limit
        self.scheduling_policy = scheduling_policy


class Model:
    """A model with pydantic's `model_dump`."""

    def model_dump(self, *, by_alias, exclude_none, mode):
        return {"backoffLimit" if by_alias else "backoff_limit": 1, **({} if exclude_none else {"suspend": None})}


def request_of(*options):
    return TrainJobRequest.parse(request_builder.build_request_data(backend=KubernetesBackend, options=list(options)))


def test_attributes_and_defaults_match_the_reference():
    defaults = {item.name: getattr(DistributedConfig(), item.name) for item in dataclasses.fields(DistributedConfig)}
    assert defaults == {
        "env": [],
        "env_from": [],
        "requests": {},
        "limits": {},
        "annotations": {},
        "labels": {},
        "node_selector": {},
        "affinity": None,
        "tolerations": [],
        "run_policy": None,
    }


def test_default_values_are_not_shared():
    DistributedConfig().env.append(V1EnvVar(name="A"))
    assert DistributedConfig().env == []


@pytest.mark.parametrize("given", [[POD_IP], POD_IP, [POD_IP_OBJECT], POD_IP_OBJECT, (POD_IP,)])
def test_a_dict_is_converted_to_the_kubernetes_object(given):
    assert DistributedConfig(env=given).env == [POD_IP_OBJECT]


def test_lists_may_mix_objects_and_dicts():
    given = V1Toleration(key="gpu", operator="Exists")
    found = DistributedConfig(tolerations=[given, {"key": "spot", "tolerationSeconds": 30}]).tolerations
    assert found == [given, V1Toleration(key="spot", toleration_seconds=30)]
    assert found[0] is given


def test_every_kubernetes_field_has_its_class():
    config = DistributedConfig(env_from=[{"secretRef": {"name": "hub"}}], affinity=AFFINITY)
    assert config.env_from == [V1EnvFromSource(secret_ref=V1SecretEnvSource(name="hub"))]
    assert isinstance(config.affinity, V1Affinity)
    assert isinstance(config.affinity.node_affinity, V1NodeAffinity)


def test_objects_of_the_async_client_are_accepted():
    import kubernetes_asyncio.client  # Half a second for each process that collects the tests.

    assert DistributedConfig(env=[kubernetes_asyncio.client.V1EnvVar(name="A", value="b")]).env == [
        V1EnvVar(name="A", value="b")
    ]


def test_to_dict_uses_kubernetes_field_names():
    config = DistributedConfig(env=[POD_IP_OBJECT], affinity=AFFINITY, limits={"cpu": 1}, run_policy=POLICY)
    assert config.to_dict() == {
        "env": [POD_IP],
        "affinity": AFFINITY,
        "limits": {"cpu": 1},
        "run_policy": POLICY,
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"env": [POD_IP, {"name": "A", "vaule": "b"}]}, r"env\[1\]\.vaule is not known; V1EnvVar has name, value, "),
        ({"env": [{"name": "A", "value_from": {}}]}, r"env\[0\]\.value_from is not known; .*valueFrom"),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"path": "x"}}}]}, r"env\[0\]\.valueFrom\.fieldRef\.path "),
        ({"env": [V1EnvVar(name="A", value_from={"feildRef": {}})]}, r"env\[0\]\.valueFrom\.feildRef is not known"),
        ({"env": {"HF_TOKEN": "x"}}, "env.HF_TOKEN is not known"),
        ({"env": [{"value": "b"}]}, r"env\[0\]: .*`name`"),
        ({"env": [{"name": "A", "value": 1}]}, r"env\[0\]\.value must be of type str, got int"),
        ({"env": [V1Toleration(key="a")]}, r"env\[0\] must be a V1EnvVar or a dict, got V1Toleration"),
        ({"env": "A=b"}, "env must be a list of V1EnvVar objects or dicts, got str"),
        ({"env": None}, "env must be a list of V1EnvVar objects or dicts, got NoneType"),
        ({"tolerations": [{"tolerationSeconds": True}]}, r"tolerations\[0\]\.tolerationSeconds must be of type int"),
        ({"affinity": {"nodeAffinty": {}}}, "affinity.nodeAffinty is not known"),
        (
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
            "affinity.podAffinity.required.* must be a list, got dict",
        ),
        ({"limits": {"cpus": 1}}, "resource 'cpus' is unknown"),
        ({"requests": ["cpu"]}, "requests must be a dict, got list"),
        ({"labels": {"a b": "c"}}, "labels key 'a b'"),
        ({"node_selector": {"gpu": 1}}, r"node_selector\['gpu'\] must be a string"),
        ({"run_policy": {"backofLimit": 1}}, "run_policy.backofLimit is unknown; run_policy has "),
        ({"run_policy": {"schedulingPolicy": {"min": 1}}}, "run_policy.schedulingPolicy.min is unknown"),
        ({"run_policy": {"cleanPodPolicy": "Some"}}, "run_policy.cleanPodPolicy must be one of Running, All, None"),
        ({"run_policy": {"ttlSecondsAfterFinished": 0}}, "run_policy.ttlSecondsAfterFinished must be .* at least 1"),
        ({"run_policy": {"suspend": 1}}, "run_policy.suspend must be true or false, got 1"),
        ({"run_policy": {"managedBy": "me"}}, "run_policy.managedBy must be one of kubeflow.org/training-operator, "),
        ({"run_policy": 5}, "run_policy must be a dict or an object such as V1RunPolicy, got int"),
    ],
)
def test_unknown_fields_are_refused_with_their_path_in_one_line(given, message):
    with pytest.raises(ValueError, match=message) as refused:
        DistributedConfig(**given)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"backoffLimit": 1}, {"backoffLimit": 1}),
        (Model(), {"backoffLimit": 1}),
        (
            RunPolicy("All", 2, SchedulingPolicy("night")),
            {"cleanPodPolicy": "All", "backoffLimit": 2, "schedulingPolicy": {"queue": "night"}},
        ),
    ],
    ids=["a dict", "a model", "an object of the client"],
)
def test_a_run_policy_can_be_a_dict_or_a_client_object(policy, expected):
    config = DistributedConfig(run_policy=policy)
    assert config.run_policy is policy
    assert request_of(config).work.distributed.run_policy == expected


def test_run_policy_fields_with_a_request_field_are_moved_there():
    request = request_of(DistributedConfig(run_policy={**POLICY, "managedBy": "kueue.x-k8s.io/multikueue"}))
    assert (request.policy.active_deadline_seconds, request.policy.delete_after_seconds, request.policy.suspend) == (
        60,
        300,
        True,
    )
    assert request.policy.managed_by == "kueue.x-k8s.io/multikueue"
    assert request.work.distributed.run_policy == {"backoffLimit": 3}


def test_managed_by_the_training_operator_is_dropped():
    assert (
        request_of(DistributedConfig(run_policy={"managedBy": "kubeflow.org/training-operator"})).policy.managed_by
        is None
    )


def test_items_added_to_its_lists_are_used():
    config = DistributedConfig()
    config.env.append(POD_IP)
    assert request_of(config).work.distributed.env == (POD_IP,)


def test_items_added_to_its_lists_are_checked():
    config = DistributedConfig()
    config.env.append({"nmae": "A"})
    with pytest.raises(ValueError, match=r"env\[0\]\.nmae is not known"):
        request_of(config)


def test_a_request_with_it_round_trips_through_json():
    config = DistributedConfig(env=[POD_IP], limits={"gpu": 1}, affinity=AFFINITY, labels={"team": "vision"})
    request = request_of(config)
    assert TrainJobRequest.from_json(request.to_json()) == request
    assert request.work.distributed.limits == {"nvidia.com/gpu": "1"}


def test_requests_over_limits_are_refused():
    with pytest.raises(ValueError, match=r"requests of memory \(4Gi\) exceed its limits \(2G\)"):
        request_of(DistributedConfig(requests={"memory": "4Gi"}, limits={"memory": "2G"}))


def test_template_placeholders_are_accepted():
    templated = DistributedConfig(
        env=[{"name": "DAY", "value": "{{ ds }}"}],
        limits={"memory": "{{ params.memory }}"},
        tolerations=[{"tolerationSeconds": "{{ params.patience }}"}],
        run_policy={"activeDeadlineSeconds": "{{ params.deadline }}", "suspend": "{{ params.suspend }}"},
    )
    spec = request_builder.build_request_data(backend=KubernetesBackend, options=[templated])
    assert spec["distributed"]["env"] == [{"name": "DAY", "value": "{{ ds }}"}]


@pytest.mark.parametrize("settings", [{"nodeSelector": {"gpu": "h100"}}, {"node_selector": {"gpu": "h100"}}])
def test_it_can_be_used_as_a_named_option(settings):
    expected = DistributedConfig(env=[POD_IP], node_selector={"gpu": "h100"})
    assert parse_options([{"DistributedConfig": {"env": [POD_IP], **settings}}]) == [expected]


@pytest.mark.parametrize("backend", ["local", "debug"])
def test_it_is_refused_by_backends_without_kubernetes(backend):
    with pytest.raises(ValueError, match=r"DistributedConfig option is not compatible with .*Backend"):
        request_builder.build_request_data(backend=backend_for(backend), options=[DistributedConfig()])


def test_the_kubernetes_client_is_imported_only_for_kubernetes_objects():
    code = (
        "import sys, trainer_core\n"
        "config = trainer_core.DistributedConfig(limits={'cpu': 1}, run_policy={'backoffLimit': 1})\n"
        "config.to_dict()\n"
        "assert 'kubernetes' not in sys.modules\n"
        "trainer_core.DistributedConfig(tolerations=[{'key': 'gpu'}])\n"
        "assert 'kubernetes' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
