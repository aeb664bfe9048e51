"""TrainingWorkloadSpec: fields, validation and the conversion to and from Run:ai's wire format."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer_core import SecretRef, TrainingWorkloadSpec
from trainer_core.backends.runai import workload as runai_workload
from trainer_core.backends.runai.workload_items import Port, Removed, VolumeClaim

#: The fields of a training workload in the documentation of Run:ai's API.
_FIELDS = json.loads((Path(__file__).with_name("data") / "training_fields.json").read_bytes())
#: What clients of Run:ai send: a training workload, the workers of a distributed workload, and its master.
_SENT: dict[str, dict[str, Any]] = {
    "training": {
        "name": {"value": "train-1"},
        "image": {"value": "registry.local/train:1"},
        "imagePullPolicy": {"value": "IfNotPresent"},
        "active": {"value": True},
        "annotations": {"items": {"team": {"value": "vision"}, "ttl": {"value": "10s"}}},
        "cpu": {"value": "100m"},
        "memory": {"value": "512M"},
        "gpuDevices": {"value": 8},
        "nodePools": {"value": "default"},
        "usage": "Submit",
    },
    "workers": {
        "name": {"value": "train-2"},
        "jobType": "MPIJob",
        "workers": {"value": 3},
        "image": {"value": "registry.local/train:1"},
        "gpuDevices": {"value": 8},
        "largeShm": {"value": False},
        "runAsUser": {"value": True},
        "autoDeletionTimeAfterCompletionSeconds": {"value": 3600},
        "usage": "Submit",
    },
    "master": {
        "name": {"value": "train-2"},
        "image": {"value": "registry.local/launch:1"},
        "imagePullPolicy": {"value": "Always"},
        "cpu": {"value": "100m"},
    },
}


#: A value of each field that can be set, and its wire format.
EVERY = {
    "active": (True, {"value": True}),
    "allow_privilege_escalation": (False, {"value": False}),
    "annotations": ({"note": "x"}, {"items": {"note": {"value": "x"}}}),
    "arguments": ("train.py --epochs 3", {"value": "train.py --epochs 3"}),
    "auto_deletion_time_after_completion_seconds": (0, {"value": 0}),
    "backoff_limit": (2, {"value": 2}),
    "base_workload": ("blueprint", "blueprint"),
    "capabilities": ({"net": "NET_ADMIN"}, {"items": {"net": {"value": "NET_ADMIN"}}}),
    "command": ("python3", {"value": "python3"}),
    "completions": (4, {"value": 4}),
    "cpu": (0.5, {"value": "0.5"}),
    "cpu_limit": ("2", {"value": "2"}),
    "create_home_dir": (True, {"value": True}),
    "environment": (
        {"LR": "0.1", "TOKEN": SecretRef("hub", "token"), "OLD": Removed()},
        {"items": {"LR": {"value": "0.1"}, "TOKEN": {"value": "SECRET:hub,token"}, "OLD": {"deleted": True}}},
    ),
    "exposed_urls": (
        {"board": {"container": 6006, "authorized_users": ["ada"]}},
        {"items": {"board": {"value": {"container": 6006, "authorizedUsers": ["ada"]}}}},
    ),
    "extended_resources": ({"rdma/ib": 1}, {"items": {"rdma/ib": {"value": "1"}}}),
    "git_sync": (
        {"code": {"repository": "https://git.local/code.git", "path": "/code", "branch": "main"}},
        {"items": {"code": {"value": {"repository": "https://git.local/code.git", "path": "/code", "branch": "main"}}}},
    ),
    "gpu": (0.5, {"value": "0.5"}),
    "gpu_limit": ("1G", {"value": "1G"}),
    "host_ipc": (False, {"value": False}),
    "host_network": (False, {"value": False}),
    "image": ("ubuntu", {"value": "ubuntu"}),
    "image_pull_policy": ("ifNotPresent", {"value": "IfNotPresent"}),
    "labels": ({"team": "vision"}, {"items": {"team": {"value": "vision"}}}),
    "large_shm": (True, {"value": True}),
    "memory": ("16Gi", {"value": "16Gi"}),
    "memory_limit": ("32Gi", {"value": "32Gi"}),
    "mount_propagation": (True, {"value": True}),
    "mpi": (False, {"value": False}),
    "name": ("job-1", {"value": "job-1"}),
    "nfs": (
        {"data": {"path": "/export", "server": "nfs.local", "mount_path": "/data", "read_only": True}},
        {
            "items": {
                "data": {"value": {"path": "/export", "server": "nfs.local", "mountPath": "/data", "readOnly": True}}
            }
        },
    ),
    "node_pools": (["a100", "default"], {"value": "a100 default"}),
    "node_type": ("dgx", {"value": "dgx"}),
    "parallelism": (2, {"value": 2}),
    "pod_affinity": (True, {"value": True}),
    "pod_affinity_scheduling_rule": ("hard", {"value": "hard"}),
    "pod_affinity_topology": ("zone", {"value": "zone"}),
    "ports": (
        {"http": Port(container=8888, external=8080, service_type="NodePort")},
        {"items": {"http": {"value": {"container": 8888, "external": 8080, "serviceType": "NodePort"}}}},
    ),
    "preemption_limit": (3, {"value": 3}),
    "processes": (8, {"value": 8}),
    "pvcs": (
        {"pvc--0": VolumeClaim(claim_name="data", existing_pvc=True, path="/data", read_only=False)},
        {
            "items": {
                "pvc--0": {"value": {"claimName": "data", "existingPvc": True, "path": "/data", "readOnly": False}}
            }
        },
    ),
    "run_as_gid": (1000, {"value": 1000}),
    "run_as_non_root": (True, {"value": True}),
    "run_as_uid": (1000, {"value": 1000}),
    "run_as_user": (True, {"value": True}),
    "s3": (
        {"b": {"bucket": "digits", "path": "/s3", "access_key_secret": "keys"}},
        {"items": {"b": {"value": {"bucket": "digits", "path": "/s3", "accessKeySecret": "keys"}}}},
    ),
    "seccomp_profile_type": ("RuntimeDefault", {"value": "RuntimeDefault"}),
    "service_type": ("ClusterIP", {"value": "ClusterIP"}),
    "slots_per_worker": (2, {"value": 2}),
    "stdin": (False, {"value": False}),
    "supplemental_groups": ([10, 20], {"value": "10;20"}),
    "terminate_after_preemption": (True, {"value": True}),
    "tolerations": (
        {"gpu": {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}},
        {"items": {"gpu": {"value": {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}}}},
    ),
    "tty": (False, {"value": False}),
    "usage": ("Submit", "Submit"),
    "username": ("ada", {"value": "ada"}),
    "volumes": (
        {"scratch": {"path": "/mnt/scratch", "mount_path": "/scratch"}},
        {"items": {"scratch": {"value": {"path": "/mnt/scratch", "mountPath": "/scratch"}}}},
    ),
    "working_dir": ("/workspace", {"value": "/workspace"}),
}
#: Fields that exclude one of the above.
EXCLUSIVE = {
    "gpu_memory": ("8G", {"value": "8G"}),
    "mig_profile": ("1g.5gb", {"value": "1g.5gb"}),
    "name_prefix": ("job", {"value": "job"}),
}
_ALIASES = {name: field.alias for name, field in TrainingWorkloadSpec.model_fields.items()}


def test_the_model_has_every_documented_field():
    assert set(_ALIASES.values()) - {"extra"} == set(_FIELDS)


def test_the_docstring_describes_every_field():
    described = re.findall(r"^    (\w+): ", inspect.getdoc(TrainingWorkloadSpec), re.MULTILINE)
    assert [name for name in described if name != "ValueError"] == list(TrainingWorkloadSpec.model_fields)


def test_every_field_has_the_wire_format_of_runai():
    spec = TrainingWorkloadSpec(**{name: value for name, (value, _) in EVERY.items()})
    assert spec.to_wire() == {_ALIASES[name]: sent for name, (_, sent) in EVERY.items()}


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_fields_that_exclude_others_have_the_wire_format_of_runai(name):
    value, sent = EXCLUSIVE[name]
    assert TrainingWorkloadSpec(**{name: value}).to_wire() == {_ALIASES[name]: sent}


def test_a_spec_survives_a_round_trip_through_the_wire_format():
    spec = TrainingWorkloadSpec(**{name: value for name, (value, _) in EVERY.items()})
    assert TrainingWorkloadSpec.from_wire(spec.to_wire()) == spec


def test_a_spec_survives_a_round_trip_through_json():
    spec = TrainingWorkloadSpec(**{name: value for name, (value, _) in EVERY.items()})
    assert TrainingWorkloadSpec(**json.loads(json.dumps(spec.to_dict()))) == spec


def test_fields_are_accepted_by_upstream_names():
    assert TrainingWorkloadSpec(gpuMemory="8G") == TrainingWorkloadSpec(gpu_memory="8G")


@pytest.mark.parametrize("raw", _SENT.values(), ids=_SENT)
def test_what_clients_of_runai_send_survives_a_round_trip(raw):
    assert TrainingWorkloadSpec.from_wire(raw).to_wire() == raw


def test_an_unknown_field_is_kept_as_extra():
    assert TrainingWorkloadSpec.from_wire(_SENT["training"]).extra == {"gpuDevices": {"value": 8}}


def test_an_unknown_member_of_an_item_is_kept_as_extra():
    raw = {"pvcs": {"items": {"a": {"value": {"path": "/data", "accessModes": {"readWriteMany": True}}}}}}
    spec = TrainingWorkloadSpec.from_wire(raw)
    assert spec.pvcs["a"].extra == {"accessModes": {"readWriteMany": True}}
    assert spec.to_wire() == raw


def test_a_value_in_another_wire_format_is_kept_unchanged():
    raw = {"cpu": {"value": "1", "locked": True}}
    assert TrainingWorkloadSpec.from_wire(raw).to_wire() == raw


def test_internal_fields_from_the_server_are_accepted():
    raw = {"userId": {"value": "7"}, "ingressUrl": {"value": "https://x"}}
    assert TrainingWorkloadSpec.from_wire(raw).to_wire() == raw


@pytest.mark.parametrize("value", ["", "text", 0, False, {}, {"label": "text", "": 1}, {"a": {"path": "/data"}}])
def test_unwrap_is_the_inverse_of_wrap(value):
    assert runai_workload.unwrap(runai_workload.wrap(value)) == value


REFUSED = [
    ({"name": "a", "name_prefix": "b"}, "name and name_prefix exclude each other"),
    ({"pod_affinity_topology": "zone"}, "pod_affinity_topology requires pod_affinity"),
    ({"pod_affinity": False, "pod_affinity_scheduling_rule": "soft"}, "requires pod_affinity; set pod_affinity=True"),
    ({"pod_affinity": True, "pod_affinity_scheduling_rule": "firm"}, "'hard' or 'soft'"),
    ({"run_as_uid": 1000}, "set run_as_user=True"),
    ({"run_as_user": False, "run_as_gid": 1000}, "set run_as_user=True"),
    ({"run_as_user": True, "run_as_non_root": True, "run_as_uid": 0}, "0 is root"),
    ({"parallelism": 3, "completions": 2}, "parallelism: 3 is more than completions=2"),
    ({"gpu": 1.5}, "neither a whole number nor a fraction"),
    ({"gpu": 1, "gpu_memory": "8G"}, "gpu and gpu_memory exclude each other"),
    ({"gpu_memory": "8G", "mig_profile": "1g.5gb"}, "gpu_memory and mig_profile exclude each other"),
    ({"gpu": True}, "must be a quantity"),
    ({"cpu": "lots"}, "'lots' is not a quantity"),
    ({"cpu": 4, "cpu_limit": 2}, "cpu: 4 is more than cpu_limit=2"),
    ({"memory": "2Gi", "memory_limit": "1Gi"}, "memory: 2Gi is more than memory_limit"),
    ({"service_type": "Ingress"}, "'LoadBalancer', 'NodePort' or 'ClusterIP'"),
    ({"seccomp_profile_type": "Localhost"}, "'RuntimeDefault' or 'Unconfined'"),
    ({"image_pull_policy": "sometimes"}, "'Always', 'IfNotPresent' or 'Never'"),
    ({"usage": "Other"}, "'Template' or 'Submit'"),
    ({"usage": "Template", "base_workload": "x"}, "a template cannot inherit"),
    ({"ingress_url": "x"}, "ingress_url: internal to Run:ai"),
    ({"userId": "x"}, "user_id: set by Run:ai"),
    ({"gpuDevices": 8}, "unknown field gpuDevices.*extra={'gpuDevices'"),
    ({"gpu": 1, "extra": {"gpu": {"value": "2"}}}, "extra: gpu is also set as the field gpu"),
    ({"gpu_memory": "8G", "gpuMemory": "4G"}, "gpuMemory is also set by its Python name"),
    ({"backoff_limit": -1}, "backoff_limit: Input should be greater than or equal to 0"),
    ({"backoff_limit": True}, "must be a number"),
    ({"active": "yes"}, "active: Input should be a valid boolean"),
    ({"ports": {"http": {"container": 0}}}, "ports.http.item.container"),
    ({"pvcs": {"a": {"path": "/a", "existing_pvc": True}}}, "claim_name is missing"),
    ({"pvcs": {"a": {"path": "/a", "claim_name": "c", "existing_pvc": True, "size": "1Gi"}}}, "for a new claim only"),
    (
        {"tolerations": {"a": {"key": "k", "operator": "Exists", "value": "v"}}},
        "value is not allowed with operator Exists",
    ),
    ({"tolerations": {"a": {"value": "v"}}}, "key is missing"),
    ({"tolerations": {"a": {"key": "k", "seconds": 5}}}, "seconds requires effect NoExecute"),
    ({"supplemental_groups": ["1;2"]}, "without the separator ';'"),
    ({"environment": {"A": {"name": "s"}}}, "name and key"),
    ({"ports": {"http": {"container": 80, "extra": {"external": 1}}}}, "extra: external is a field of this model"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED, ids=[" ".join(fields) for fields, _ in REFUSED])
def test_invalid_fields_are_refused_in_one_line(fields, reason):
    with pytest.raises(ValueError, match=reason) as refused:
        TrainingWorkloadSpec(**fields)
    assert len(str(refused.value).splitlines()) == 1


def test_a_required_field_may_be_inherited_from_the_base_workload():
    spec = TrainingWorkloadSpec(base_workload="blueprint", run_as_uid=1000, pod_affinity_topology="zone")
    assert spec.run_as_uid == 1000


def test_a_deprecated_field_warns():
    with pytest.warns(DeprecationWarning, match="use node_pools"):
        TrainingWorkloadSpec(node_pool="default")


def test_fields_are_merged_item_by_item():
    base = TrainingWorkloadSpec(gpu=1, environment={"A": "1", "B": "2"})
    spec = TrainingWorkloadSpec(environment={"B": Removed(), "C": "3"}).merge_over(base)
    assert spec == TrainingWorkloadSpec(gpu=1, environment={"A": "1", "B": Removed(), "C": "3"})


def test_importing_requests_and_options_does_not_load_the_model():
    model = TrainingWorkloadSpec.__module__
    code = f"import sys, trainer_core.model.request, trainer_core.definition.options; print({model!r} in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
