"""What broke on a real KFP backend, on its double: one test for each fault of the components that was found there."""

# KFP reads the signatures of pipelines and does not know "X | None".
# ruff: noqa: UP006, UP035

import json
from typing import Dict, List

import pytest
from fake_cluster import Cluster
from fake_cluster.runtimes import runtime
from kfp import components, dsl
from kfp_backend import WORKFLOW_DEFINITION, Pod
from kfp_driver import COMPONENTS, REPOSITORY
from kfp_programs import compiled

from kfp_components.tasks import train_task, wait_task
from trainer_core import CustomTrainer

# Whole pipelines: each step is a new interpreter.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=["kubeflow"]) as cluster:
        cluster.add(WORKFLOW_DEFINITION)
        cluster.add(runtime("python-nodes", "plain", {"numNodes": 1}))
        yield cluster


@pytest.fixture
def run(make_backend, cluster, tmp_path):
    """Run a pipeline with a cluster in reach; the parameter `config` of the pipeline leads there."""
    kube = tmp_path / "kube"
    kube.mkdir()
    config = {"config_file": str(cluster.kubeconfig(kube / "config")), "namespace": "kubeflow"}

    def run(pipeline, parameters=None, *, on_line=lambda step, line: None, pods=None, **settings):
        environment = {"TRAINJOB_KFP_CONTAINER": "1", "TRAINJOB_HOME": "/tmp/trainjob"}
        backend = make_backend(image_environment=environment, **settings)
        backend.objects.api = cluster
        backend.objects.secrets["mlflow"] = {"token": "secret"}
        backend.objects.host_folders.append(kube)
        documents = compiled(pipeline, tmp_path)
        wanted = documents[0]["root"].get("inputDefinitions", {}).get("parameters", {})
        given = {**(parameters or {}), **({"config": config} if "config" in wanted else {})}
        return backend.run(documents, given, on_line=on_line, pods=pods)

    yield run
    for job in cluster.objects("TrainJob", "kubeflow"):
        cluster.delete("TrainJob", job["metadata"]["name"], "kubeflow")


@pytest.fixture
def jobs(cluster):
    return lambda: cluster.objects("TrainJob", "kubeflow")


def test_dollars_in_arguments_of_a_component_from_yaml_are_written_as_the_guide_says(run, jobs):
    submit = components.load_component_from_file(str(COMPONENTS / "submit.yaml"))
    written = ["$$$$(KFP_POD_NAME)", "$$$$$$$$", "a$b", "$$", "$(KFP_POD_NAME)"]

    @dsl.pipeline(name="dollars")
    def pipeline(config: Dict, given: List[str]):
        for arguments in (written, given):
            submit(
                request={"runtime": "torch-distributed", "trainer": {"image": "registry.example/train:1.0"}},
                args=arguments,
                backend="kubernetes",
                backend_config=config,
                run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
                task_name=dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
            )

    finished = run(pipeline, {"given": written})

    assert finished.phase == "Succeeded", finished.explain()
    arrived = [job["spec"]["trainer"]["args"] for job in jobs()]
    assert arrived == [["$(KFP_POD_NAME)", "$$", "a$b", "$", "driver-pod"]] * 2


def test_a_model_outside_the_pipeline_root_does_not_fail_the_step(run):
    def name_a_model():
        return {"accuracy": 0.7, "artifacts": {"model": "s3://models/digits"}}

    @dsl.pipeline(name="elsewhere")
    def pipeline():
        train_task(trainer=CustomTrainer(func=name_a_model), runtime="python", wait=True)

    finished = run(pipeline)

    assert finished.phase == "Succeeded", finished.explain()
    model = finished.artifact("train", "model")
    assert model["uri"].startswith(finished.uri)
    assert model["metadata"]["uri"] == "s3://models/digits"


@pytest.mark.parametrize("uri", ["pvc://claim/model", "hf://owner/model", "s3://models/digits"])
def test_a_model_that_is_elsewhere_can_be_the_input_of_a_step(run, uri):
    def name_a_model(uri: str):
        return {"accuracy": 0.7, "artifacts": {"model": uri}}

    @dsl.container_component
    def consume(model: dsl.Input[dsl.Model]):
        return dsl.ContainerSpec(image="python:3.11", command=["echo", "consumed"])

    @dsl.pipeline(name="elsewhere")
    def pipeline(uri: str):
        trainer = CustomTrainer(func=name_a_model, func_args={"uri": ""})
        trained = train_task(trainer=trainer, runtime="python", func_args={"uri": uri}, wait=True)
        consume(model=trained.outputs["model"])

    finished = run(pipeline, {"uri": uri})

    assert finished.phase == "Succeeded", finished.explain()
    assert finished.task("consume").log == "consumed\n"


def measure():
    return {"accuracy": 0.7, "loss": 0.3}


def test_two_tasks_that_wait_for_different_metrics_each_have_their_own(run):
    @dsl.container_component
    def take(value: float):
        return dsl.ContainerSpec(image="python:3.11", command=["echo"], args=[value])

    @dsl.pipeline(name="two-metrics")
    def pipeline(config: Dict):
        trainer = CustomTrainer(func=measure)
        trained = train_task(trainer=trainer, runtime="python", backend="kubernetes", backend_config=config)
        for metric in ("accuracy", "loss"):
            waited = wait_task(job=trained.outputs["job"], metrics=[metric], backend_config=config)
            take(value=waited.outputs[metric])

    finished = run(pipeline)

    assert finished.phase == "Succeeded", finished.explain()
    assert [finished.task(name).log for name in ("take", "take-2")] == ["0.7\n", "0.3\n"]


@pytest.mark.parametrize("name", ["retrain_digits", "retrain_scheduled", "sweep"])
def test_steps_that_take_hours_are_tried_again(make_backend, name):
    parameters = {"dataset_uri": "nowhere://data", "registry": "/registry"}
    wanted = {key: parameters[key] for key in (["dataset_uri"] if name == "retrain_scheduled" else parameters)}
    backend = make_backend(retry_policy=None)
    pods = {"look": [Pod(seconds=7200)] * 3}

    finished = backend.run(REPOSITORY / "pipelines" / f"{name}.yaml", wanted, pods=pods)

    assert len(finished.task("look").tries) == 3


def test_the_backend_may_be_a_pipeline_parameter_and_limits_still_reach_the_pods_that_train(run, jobs):
    @dsl.pipeline(name="where")
    def pipeline(config: Dict, backend: str):
        trainer = CustomTrainer(func=measure)
        trained = train_task(trainer=trainer, runtime="python-nodes", backend=backend, backend_config=config)
        trained.set_cpu_limit("2").set_env_variable("COLOUR", "blue")

    finished = run(pipeline, {"backend": "kubernetes"})

    assert finished.phase == "Succeeded", finished.explain()
    (job,) = jobs()
    assert '"cpu": "2"' in json.dumps(job["spec"])
    assert "blue" in json.dumps(job["spec"])


def show_text(text: str):
    return {"text": text, "own": "$$ $(KFP_POD_NAME) {{workflow.name}}"}


@pytest.mark.parametrize("text", ["cost $$5 and $(KFP_POD_NAME)", 'a "quote"', "two\nlines", "{{workflow.name}}"])
def test_source_and_constant_arguments_of_the_function_arrive_unchanged(run, text):
    @dsl.pipeline(name="text")
    def pipeline():
        trainer = CustomTrainer(func=show_text, func_args={"text": ""})
        train_task(trainer=trainer, runtime="python", func_args={"text": text}, wait=True)

    finished = run(pipeline)

    assert finished.phase == "Succeeded", finished.explain()
    own = "$$ $(KFP_POD_NAME) {{workflow.name}}"
    assert finished.output("train", "result") == {"text": text, "own": own}


def show_values(names: List[str], options: dict, text: str):
    return {"names": names, "options": options, "text": text}


def test_lists_dicts_and_any_text_may_be_pipeline_parameters_of_the_function(run):
    @dsl.pipeline(name="values")
    def pipeline(names: List[str], options: Dict, text: str):
        trainer = CustomTrainer(func=show_values, func_args={"names": [], "options": {}, "text": ""})
        func_args = {"names": names, "options": options, "text": text}
        train_task(trainer=trainer, runtime="python", func_args=func_args, wait=True)

    given = {"names": ["a", 'b"'], "options": {"deep": {"x": 1, "y": None}}, "text": 'a "quote"\nand a line'}
    finished = run(pipeline, given)

    assert finished.phase == "Succeeded", finished.explain()
    assert finished.output("train", "result") == given


@pytest.mark.parametrize("trainer", [CustomTrainer(func=measure), None], ids=["function", "runtime-as-it-is"])
def test_variables_that_an_installation_injects_do_not_stop_a_task(run, trainer):
    reference = {"secretKeyRef": {"name": "mlflow", "key": "token"}}
    plugin = [{"name": "MLFLOW_RUN_ID", "value": "run"}, {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": reference}]

    @dsl.pipeline(name="injected")
    def pipeline(config: Dict):
        train_task(trainer=trainer, runtime="python", backend="kubernetes", backend_config=config)

    around = {"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "127.0.0.1"}
    proxies = {**around, **{name.lower(): value for name, value in around.items()}}
    finished = run(pipeline, proxies=proxies, plugin_environment=plugin)

    assert finished.phase == "Succeeded", finished.explain()


@pytest.mark.parametrize("backend", ["debug", "local"])
def test_a_child_process_of_the_training_does_not_keep_the_step_running(run, backend):
    def leave_a_child():
        import subprocess

        subprocess.Popen(["sleep", "1000"])
        return {"accuracy": 0.7}

    @dsl.pipeline(name="child")
    def pipeline():
        train_task(trainer=CustomTrainer(func=leave_a_child), runtime="python", backend=backend, wait=True)

    finished = run(pipeline)

    assert finished.phase == "Succeeded", finished.explain()


def test_a_broken_link_beside_a_model_loses_none_of_its_files(run):
    def link_to_nowhere():
        from trainer_core import output_path

        folder = output_path() / "model"
        folder.mkdir(parents=True)
        for name in ("a", "z"):
            (folder / name).write_text(name)
        (folder / "m").symlink_to("nowhere")
        return {"accuracy": 0.7, "artifacts": {"model": folder.as_uri()}}

    @dsl.container_component
    def consume(model: dsl.Input[dsl.Model]):
        return dsl.ContainerSpec(image="python:3.11", command=["sh", "-c", 'ls "$0"'], args=[model.path])

    @dsl.pipeline(name="links")
    def pipeline():
        trained = train_task(trainer=CustomTrainer(func=link_to_nowhere), runtime="python", wait=True)
        consume(model=trained.outputs["model"])

    finished = run(pipeline)

    # Either all files arrive, or the step fails with a reason; half of a model is never a success.
    listed = [node.log for node in finished.tasks("consume")]
    assert (finished.phase, listed) in [("Succeeded", ["a\nz\n"]), ("Failed", [""])]


def test_an_infinite_threshold_does_not_lose_the_curve(run):
    def classify():
        roc = {"fpr": [0, 0.1, 1], "tpr": [0, 0.8, 1], "thresholds": [float("inf"), 0.5, 0]}
        return {"accuracy": 0.9, "roc": roc}

    @dsl.pipeline(name="curve")
    def pipeline():
        train_task(trainer=CustomTrainer(func=classify), runtime="python", wait=True)

    finished = run(pipeline)

    assert finished.phase == "Succeeded", finished.explain()
    points = finished.artifact("train", "classification")["metadata"]["confidenceMetrics"]["list"]
    assert [point["recall"] for point in points] == [0, 0.8, 1]


def test_nulls_in_a_result_pass(run):
    def return_nulls():
        return {"accuracy": 0.9, "best": None, "loss": float("nan"), "nested": {"a": None}}

    @dsl.pipeline(name="nulls")
    def pipeline():
        train_task(trainer=CustomTrainer(func=return_nulls), runtime="python", wait=True)

    finished = run(pipeline)

    assert finished.phase == "Succeeded", finished.explain()
    assert finished.output("train", "result")["accuracy"] == 0.9


def test_a_failed_step_prints_the_reason_last_in_the_log_that_kfp_shows(run):
    def fail():
        raise ValueError("no luck")

    @dsl.pipeline(name="failing")
    def pipeline():
        train_task(trainer=CustomTrainer(func=fail), runtime="python", wait=True)

    finished = run(pipeline)

    assert finished.phase == "Failed"
    assert list(finished.artifacts("train")) == ["executor-logs"]
    assert "ValueError: no luck" in finished.task("train").log.splitlines()[-1]


def test_a_terminated_run_ends_the_job_that_its_step_waits_for(run, jobs, cluster):
    def run_for_ever():
        import time

        print("training has begun", flush=True)
        while True:
            time.sleep(0.1)

    @dsl.pipeline(name="terminated")
    def pipeline(config: Dict):
        trainer = CustomTrainer(func=run_for_ever)
        train_task(trainer=trainer, runtime="python", backend="kubernetes", backend_config=config, wait=True)

    def on_line(step, line):
        if "training has begun" in line:
            step.terminate_run(kill_after=600)

    finished = run(pipeline, on_line=on_line)

    assert (finished.phase, finished.artifacts("train")) == ("Failed", {})
    cluster.until(lambda: not [pod for pod in cluster.objects("pods", "kubeflow") if "node" in pod["metadata"]["name"]])


@pytest.mark.parametrize("size", [30_000, 60_000])
def test_a_request_that_kfp_cannot_pass_is_refused_when_the_pipeline_is_compiled(run, size, tmp_path):
    quotes = '"' * size

    def compile_and_run():
        @dsl.pipeline(name="large")
        def pipeline():
            trainer = CustomTrainer(func=show_text, func_args={"text": quotes})
            train_task(trainer=trainer, runtime="python", wait=True)

        return run(pipeline)

    try:
        end = compile_and_run().phase
    except ValueError as error:
        end = "bytes" if "bytes" in str(error) else str(error)

    assert end in ("Succeeded", "bytes")
