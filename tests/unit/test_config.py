"""The configurations of the backends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer_core import RunaiBackendConfig, TrainingOperatorBackendConfig
from trainer_core.model.backend_names import OWN_BACKENDS
from trainer_core.model.config import (
    ContainerBackendConfig,
    DebugBackendConfig,
    KubernetesBackendConfig,
    LocalProcessBackendConfig,
    TrainingRuntimeSource,
    config_class,
    config_from_dict,
)

CLUSTER = pytest.mark.parametrize("kind", [KubernetesBackendConfig, TrainingOperatorBackendConfig, RunaiBackendConfig])


class Configuration:
    """Stands for a kubernetes.client.Configuration; has the attributes that are read."""

    host = "https://cluster.example.com"
    api_key = "hunter2"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (LocalProcessBackendConfig, "local"),
        (DebugBackendConfig, "debug"),
        (ContainerBackendConfig, "container"),
        (KubernetesBackendConfig, "kubernetes"),
        (RunaiBackendConfig, "runai"),
        (TrainingOperatorBackendConfig, "training-operator"),
    ],
)
def test_a_configuration_names_its_backend(kind, name):
    assert kind.backend == name
    assert config_class(name) is kind


@pytest.mark.parametrize("kind", [config_class(name) for name in OWN_BACKENDS])
def test_an_unknown_setting_is_refused_with_the_known_ones(kind):
    known = ", ".join(kind.model_fields) or "none"
    with pytest.raises(ValueError, match=f"^{kind.__name__}: unknown setting colour; known are {known}$"):
        kind(colour="red")


def test_a_configuration_is_built_from_plain_data():
    assert config_from_dict("local", {"home": "/data"}) == LocalProcessBackendConfig(home=Path("/data"))


def test_a_backend_that_does_not_exist_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown backend 'slurm'; known are container, debug, kubernetes, local"):
        config_from_dict("slurm", {})


def test_the_state_folder_is_in_the_home_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("TRAINJOB_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert LocalProcessBackendConfig().state_home == tmp_path / ".trainjob"


def test_the_environment_sets_the_state_folder(monkeypatch, tmp_path):
    config = LocalProcessBackendConfig()
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "state"))
    assert config.state_home == tmp_path / "state"


def test_the_configuration_sets_the_state_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINJOB_HOME", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    assert LocalProcessBackendConfig(home="my jobs").state_home == tmp_path / "my jobs"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"home": ""}, "home: must be the path of a folder"),
        ({"home": "a\0b"}, "home: must be the path of a folder"),
        ({"keep_finished": -1}, "keep_finished: Input should be greater than or equal to 0, got -1"),
        ({"keep_finished": True}, "keep_finished: must be a number, not True or False"),
        ({"keep_finished_days": float("nan")}, "keep_finished_days: Input should be"),
        ({"keep_finished_days": -0.5}, "keep_finished_days: Input should be"),
        ({"cleanup_venv": "perhaps"}, "cleanup_venv: Input should be a valid boolean"),
    ],
)
def test_an_invalid_local_setting_is_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=f"^LocalProcessBackendConfig: {message}.*$") as refused:
        LocalProcessBackendConfig(**settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("policy", ["IfNotPresent", "Always", "Never"])
def test_a_pull_policy_is_one_of_three(policy):
    assert ContainerBackendConfig(pull_policy=policy).pull_policy == policy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pull_policy": "always"}, "pull_policy: must be one of IfNotPresent, Always, Never, got 'always'"),
        ({"container_runtime": "lxc"}, "container_runtime: Input should be 'docker' or 'podman', got 'lxc'"),
        ({"initializer_timeout": 0}, "initializer_timeout: Input should be greater than or equal to 1, got 0"),
        ({"initializer_timeout": True}, "initializer_timeout: must be a number"),
        ({"dataset_initializer_image": ""}, "dataset_initializer_image: String should have at least 1 character"),
    ],
)
def test_an_invalid_container_setting_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ContainerBackendConfig(**settings)


def test_an_assigned_value_is_validated():
    config = ContainerBackendConfig()
    with pytest.raises(ValueError, match="must be one of IfNotPresent, Always, Never"):
        config.pull_policy = "always"


@pytest.mark.parametrize(
    "source",
    ["github://kubeflow/trainer", "github://o/r/path/in/it", "https://example.com/r", "file:///r", "/runtimes"],
)
def test_runtimes_are_read_from_a_repository_a_server_or_a_folder(source):
    assert TrainingRuntimeSource(sources=[source]).sources == [source]


@pytest.mark.parametrize("source", ["github://kubeflow", "ftp://example.com", "runtimes", "", "github://a/ b"])
def test_a_source_of_another_kind_is_refused(source):
    with pytest.raises(ValueError, match="must be github://owner/repository"):
        TrainingRuntimeSource(sources=[source])


def test_sources_are_not_shared_between_configurations():
    ContainerBackendConfig().runtime_source.sources.append("/runtimes")
    assert ContainerBackendConfig().runtime_source.sources == ["github://kubeflow/trainer"]


@CLUSTER
@pytest.mark.parametrize("namespace", ["team-a", "{{ var.value.namespace }}"])
def test_a_namespace_can_be_a_template(kind, namespace):
    assert kind(namespace=namespace).namespace == namespace


@CLUSTER
@pytest.mark.parametrize("namespace", ["Team", "a/b", "", "a" * 64, "-a"])
def test_an_invalid_namespace_is_refused(kind, namespace):
    with pytest.raises(ValueError, match="namespace: must be a namespace: at most 63"):
        kind(namespace=namespace)


@CLUSTER
def test_a_client_configuration_is_kept_and_never_printed(kind):
    configuration = Configuration()
    config = kind(namespace="team-a", client_configuration=configuration)
    assert config.client_configuration is configuration
    assert "Configuration object" not in repr(config)
    assert "client_configuration" not in config.model_dump()


@CLUSTER
def test_a_value_that_is_not_a_client_configuration_is_refused(kind):
    with pytest.raises(ValueError, match=r"client_configuration: must be a kubernetes\.client\.Configuration"):
        kind(namespace="team-a", client_configuration="https://cluster.example.com")


@pytest.mark.parametrize(
    ("settings", "namespace"),
    [({"project": "vision"}, "runai-vision"), ({"project": "vision", "namespace": "team-a"}, "team-a")],
)
def test_a_project_of_runai_has_a_namespace(settings, namespace):
    assert RunaiBackendConfig(**settings).project_namespace == namespace


def test_runai_needs_a_project_or_a_namespace():
    with pytest.raises(ValueError, match="give the Run:ai project, or the namespace of its workloads"):
        RunaiBackendConfig()


def test_the_model_configuration_has_its_name_in_the_sdk():
    assert KubernetesBackendConfig.Config.arbitrary_types_allowed is True


def test_no_configuration_loads_a_client_library():
    program = (
        "import sys; from trainer_core.model.config import *; KubernetesBackendConfig(); ContainerBackendConfig(); "
        "print(*sorted({'kubernetes', 'docker', 'kubernetes_asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_initializer_images_are_of_a_release_and_can_be_replaced():
    config = KubernetesBackendConfig(model_initializer_image="registry.example.com/model:1")
    assert config.dataset_initializer_image == "ghcr.io/kubeflow/trainer/dataset-initializer:v2.3.0"
    assert config.model_initializer_image == "registry.example.com/model:1"


@pytest.mark.parametrize("way", [{"config_file": "/a"}, {"context": "a"}])
def test_conflicting_connection_settings_are_refused(way):
    with pytest.raises(ValueError, match=f"in_cluster conflicts with {next(iter(way))}"):
        KubernetesBackendConfig(in_cluster=True, **way)
