"""The double of the KFP backend: what is set on a task goes to its pod, to TaskConfig, or to both (rows 17 and 18)."""

# KFP reads the signatures of components and does not know "X | None".
# ruff: noqa: UP045

import json
from typing import Optional

import pytest
from kfp import dsl, kubernetes
from kfp_backend.quantities import canonical_quantity
from kfp_programs import compiled, run_python

SHOW = "print(json.dumps(parameters))"
FIELDS = ("RESOURCES", "ENV", "KUBERNETES_AFFINITY", "KUBERNETES_TOLERATIONS", "KUBERNETES_NODE_SELECTOR")


@dsl.container_component
def configured(name: Optional[str] = None, config: dsl.TaskConfig = None):
    return run_python(SHOW)


def passing(fields, apply_to_task=()):
    """The component with pass-throughs."""
    enum = dsl.TaskConfigField
    configured.component_spec.task_config_passthroughs = [
        dsl.TaskConfigPassthrough(field=enum[field], apply_to_task=field in apply_to_task) for field in fields
    ]
    return configured


@pytest.fixture
def backend(make_backend):
    return make_backend(publish_logs=False)


@pytest.fixture
def run(backend, tmp_path):
    """Run a task with settings; return its node and the TaskConfig that the program got."""

    def run(settings, fields=(*FIELDS, "KUBERNETES_VOLUMES"), apply_to_task=(), parameters=None):
        component = passing(fields, apply_to_task)

        @dsl.pipeline(name="configured")
        def pipeline(name: Optional[str] = None, selector: Optional[dict] = None, cpu: str = "1", count: int = 1):
            task = component(name="x")
            task.set_caching_options(False)
            settings(task, name, selector, cpu, count)

        finished = backend.run(compiled(pipeline, tmp_path), parameters)
        node = finished.task("configured")
        assert node.phase == "Succeeded", finished.explain()
        return node, json.loads(node.log)["config"]

    return run


def test_a_task_config_has_all_keys(run):
    _, config = run(lambda task, *_: None)

    assert config == {
        "affinity": None,
        "tolerations": None,
        "nodeSelector": None,
        "env": [],
        "volumes": None,
        "volumeMounts": None,
        "resources": {},
    }


def test_without_pass_throughs_everything_goes_to_the_pod_and_nothing_to_task_config(run):
    node, config = run(lambda task, *_: task.set_cpu_limit("0.5").set_env_variable("A", "b"), fields=())

    assert (node.decision.pod.resources, config["resources"]) == ({"limits": {"cpu": "500m"}}, {})
    assert (node.decision.pod.environment, config["env"]) == ([{"name": "A", "value": "b"}], None)


def test_listed_fields_go_to_task_config_and_to_the_pod_where_they_are_applied(run):
    node, config = run(
        lambda task, *_: task.set_cpu_limit("2").set_env_variable("A", "b"),
        fields=("RESOURCES", "ENV"),
        apply_to_task=("ENV",),
    )

    assert (node.decision.pod.resources, config["resources"]) == ({}, {"limits": {"cpu": "2"}})
    assert node.decision.pod.environment == config["env"] == [{"name": "A", "value": "b"}]


def test_an_empty_variable_has_only_a_name(run):
    _, config = run(lambda task, *_: task.set_env_variable("EMPTY", ""))

    assert config["env"] == [{"name": "EMPTY"}]


def test_proxies_and_variables_of_plug_ins_are_passed_on_too(make_backend, tmp_path):
    secret = {"secretKeyRef": {"name": "mlflow", "key": "token"}}
    plugin = [{"name": "MLFLOW_RUN_ID", "value": "run"}, {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": secret}]
    backend = make_backend(publish_logs=False, proxies={"HTTP_PROXY": "http://proxy"}, plugin_environment=plugin)
    component = passing(["ENV"])

    @dsl.pipeline(name="injected")
    def pipeline():
        component()

    config = json.loads(backend.run(compiled(pipeline, tmp_path)).task("configured").log)["config"]

    assert config["env"] == [*plugin, {"name": "HTTP_PROXY", "value": "http://proxy"}]


def test_secrets_config_maps_and_fields_are_passed_on_by_reference(run):
    def settings(task, *_):
        kubernetes.use_secret_as_env(task, "store", {"key": "ACCESS_KEY"}, optional=True)
        kubernetes.use_config_map_as_env(task, "settings", {"level": "LEVEL"})
        kubernetes.use_field_path_as_env(task, "POD", "metadata.name")

    _, config = run(settings)

    assert config["env"] == [
        {"name": "ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "store", "key": "key", "optional": True}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level", "optional": False}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]


def test_volumes_are_passed_on_with_their_mounts(run, backend):
    backend.objects.claims.add("data")

    def settings(task, *_):
        kubernetes.mount_pvc(task, pvc_name="data", mount_path="/data")
        kubernetes.use_secret_as_volume(task, "store", "/secret", optional=True)

    node, config = run(settings)

    assert node.decision.pod.volumes == []
    assert config["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "store", "secret": {"secretName": "store", "optional": True}},
    ]
    assert config["volumeMounts"] == [
        {"name": "data", "mountPath": "/data"},
        {"name": "store", "mountPath": "/secret"},
    ]


def test_placement_is_passed_on(run):
    def settings(task, *_):
        kubernetes.add_node_selector(task, "zone", "a")
        kubernetes.add_toleration(task, key="gpu", operator="Exists", effect="NoSchedule")
        kubernetes.add_node_affinity(task, match_expressions=[{"key": "disk", "operator": "In", "values": ["ssd"]}])

    _, config = run(settings)

    terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
    assert config["nodeSelector"] == {"zone": "a"}
    assert config["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert config["affinity"] == {"nodeAffinity": required}


def test_a_null_parameter_skips_the_setting(run):
    def settings(task, name, selector, *_):
        kubernetes.add_node_selector_json(task, selector)
        kubernetes.use_secret_as_env(task, name, {"key": "ACCESS_KEY"})

    node, config = run(settings)

    assert (config["nodeSelector"], config["env"], node.phase) == (None, [], "Succeeded")


def test_a_deadline_stays_with_the_pod(run):
    node, config = run(lambda task, *_: kubernetes.set_timeout(task, 60))

    assert (node.decision.pod.deadline, "activeDeadlineSeconds" in config) == (60.0, False)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("0.5", "500m"), ("1000m", "1"), ("2", "2"), ("1024Mi", "1Gi"), ("4G", "4G"), ("1.5Gi", "1536Mi"), ("0", "0")],
)
def test_quantities_are_canonical(text, canonical):
    assert canonical_quantity(text) == canonical


def test_a_text_parameter_sets_a_resource(run):
    _, config = run(lambda task, name, selector, cpu, count: task.set_cpu_limit(cpu), parameters={"cpu": "3"})

    assert config["resources"] == {"limits": {"cpu": "3"}}


def test_an_accelerator_is_a_limit_only(run):
    _, config = run(lambda task, *_: task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(2))

    assert config["resources"] == {"limits": {"nvidia.com/gpu": "2"}}


def with_resource(backend, folder, value, text):
    @dsl.container_component
    def limited(value: type(value)):
        return run_python("")

    @dsl.pipeline(name="limited")
    def pipeline(value: type(value)):
        limited(value=value).set_memory_limit("1G")

    documents = compiled(pipeline, folder)
    resources = documents[0]["deploymentSpec"]["executors"]["exec-limited"]["container"]["resources"]
    resources["resourceMemoryLimit"] = text
    return backend.run(documents, {"value": value}).task("limited")


PLACEHOLDER = "{{$.inputs.parameters['value']}}"


def test_a_number_in_the_place_of_a_resource_is_empty_and_fails_in_the_driver(backend, tmp_path):
    node = with_resource(backend, tmp_path, 3, PLACEHOLDER)

    assert "''" in node.message
    assert node.phase == "Failed"


def test_text_around_a_placeholder_of_a_resource_is_lost(backend, tmp_path):
    node = with_resource(backend, tmp_path, "3", f"{PLACEHOLDER}Gi")

    assert node.decision.pod.resources == {"limits": {"memory": "3"}}


# What the pod has of it.


def test_a_pod_has_its_volumes_and_variables(backend, tmp_path):
    backend.objects.claims.add("data")
    backend.objects.secrets["store"] = {"key": "secret value"}

    @dsl.container_component
    def step():
        return run_python(
            "pathlib.Path('/data/left').touch(); print(os.environ['ACCESS_KEY'], open('/secret/key').read())"
        )

    @dsl.pipeline(name="volumes")
    def pipeline():
        task = step()
        kubernetes.mount_pvc(task, pvc_name="data", mount_path="/data", sub_path="below")
        kubernetes.use_secret_as_volume(task, "store", "/secret")
        kubernetes.use_secret_as_env(task, "store", {"key": "ACCESS_KEY"})

    finished = backend.run(compiled(pipeline, tmp_path))

    assert finished.task("step").log == "secret value secret value\n"
    assert (backend.objects.claim("data") / "below" / "left").exists()


@pytest.mark.parametrize("kind", ["claim", "secret"])
def test_a_pod_does_not_start_without_what_it_refers_to(backend, tmp_path, kind):
    @dsl.container_component
    def step():
        return run_python("")

    @dsl.pipeline(name="missing")
    def pipeline():
        task = step()
        kubernetes.mount_pvc(task, pvc_name="none", mount_path="/data") if kind == "claim" else None
        kubernetes.use_secret_as_env(task, "none", {"key": "KEY"})

    node = backend.run(compiled(pipeline, tmp_path)).task("step")

    assert (node.phase, "not found" in node.message) == ("Error", True)
