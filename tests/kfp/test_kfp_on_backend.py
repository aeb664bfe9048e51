"""Every committed pipeline and component on the double of the KFP backend, with training on a cluster."""

import hashlib
import json
import re

import kfp_definitions as definitions
import pytest
from fake_cluster import Cluster
from kfp import components, dsl
from kfp_backend import WORKFLOW_DEFINITION
from kfp_driver import COMPONENTS, REPOSITORY
from kfp_programs import compiled
from optional_packages import requires
from s3_storage import serving, static

from kfp_components.tasks import initialize_task
from trainer_core import CustomTrainer
from trainer_core.client import backend_for
from trainer_core.definition import request_builder

# A pipeline has up to nine steps, each a new interpreter: on a busy machine that takes minutes.
pytestmark = pytest.mark.slow

PIPELINES = REPOSITORY / "pipelines"
#: Settings of installations: as KFP's manifests have them, with a bucket of one's own, and without published logs.
INSTALLATIONS = {
    "default": {},
    "s3": {"root": "s3://pipelines/team-a"},
    "logs-off": {"publish_logs": False},
}
RUN_ID, TASK_NAME = dsl.PIPELINE_JOB_ID_PLACEHOLDER, dsl.PIPELINE_TASK_NAME_PLACEHOLDER
#: Plays the dataset initializer: leaves a copy of a folder of this machine.
COPY = """
import os, shutil
shutil.copytree({folder!r}, os.environ["TRAINJOB_DATASET_PATH"], dirs_exist_ok=True)
"""


def image_environment():
    """ENV of the components' image."""
    dockerfile = (REPOSITORY / "kfp_components" / "Dockerfile").read_text()
    (block,) = re.findall(r"^ENV (TRAINJOB(?:.*\\\n)*.*)", dockerfile, flags=re.MULTILINE)
    return dict(re.findall(r"(\w+)=(\S+)", block))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """What `write_dataset` of the example writes, in small and without scikit-learn."""
    numpy = pytest.importorskip("numpy")
    folder = tmp_path_factory.mktemp("storage") / "digits"
    folder.mkdir(parents=True)
    random = numpy.random.default_rng(0)
    labels = random.integers(0, 10, 64)
    scans = random.random((64, 64), dtype="float32")
    numpy.savez(folder / "digits.npz", train_x=scans, train_y=labels, test_x=scans[:32], test_y=labels[:32])
    return folder


@pytest.fixture(scope="module")
def storage(dataset):
    """S3 storage with the dataset in the bucket `data`; its URL."""
    with serving.served(static.app(dataset.parent)) as url:
        yield url


@pytest.fixture(scope="module")
def cluster(dataset):
    with Cluster() as cluster:
        cluster.add(WORKFLOW_DEFINITION)
        cluster.images["dataset-initializer"] = COPY.format(folder=str(dataset))
        yield cluster


@pytest.fixture
def namespace(cluster, request):
    """A namespace of the test's own; no job outlives the test."""
    name = f"test-{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"
    cluster.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    for job in cluster.objects("TrainJob", name):
        cluster.delete("TrainJob", job["metadata"]["name"], name)


@pytest.fixture(params=INSTALLATIONS)
def settings(request):
    """Settings of an installation: each in turn, or those that `in_installation` names."""
    return INSTALLATIONS[request.param]


def in_installation(name):
    """Run a test in one installation: a training on the cluster takes long, and is the same in each."""
    return pytest.mark.parametrize("settings", [name], indirect=True)


@pytest.fixture
def make_installation(make_backend, cluster, namespace, storage, tmp_path):
    """Make a backend whose steps reach the cluster and the storage."""

    def make(**settings):
        environment = {**image_environment(), "ENDPOINT": storage, "REGION": "us-east-1"}
        backend = make_backend(image_environment=environment, namespace=namespace, **settings)
        (tmp_path / "kube").mkdir(exist_ok=True)
        cluster.kubeconfig(tmp_path / "kube" / "config")
        backend.objects.host_folders.append(tmp_path / "kube")
        backend.objects.api = cluster
        backend.objects.claims_folder = cluster.claims_folder(namespace)
        backend.objects.claims |= {"model-registry", "digits"}
        backend.objects.secrets["object-store"] = {"accesskey": "key", "secretkey": "secret"}
        return backend

    return make


@pytest.fixture
def config(namespace, tmp_path):
    """backend_config of the cluster."""
    return {"config_file": str(tmp_path / "kube" / "config"), "namespace": namespace}


@pytest.fixture
def on_cluster(config):
    """Parameters that every example pipeline has on a cluster."""
    return {"backend": "kubernetes", "backend_config": config, "dataset_uri": "s3://data/digits", "epochs": 1}


# The pipelines.


@in_installation("s3")
@requires("torch", "numpy")
def test_retrain_digits_trains_on_a_cluster_and_promotes_the_model(make_installation, settings, on_cluster):
    backend = make_installation(**settings)

    run = backend.run(PIPELINES / "retrain_digits.yaml", {**on_cluster, "processes_per_node": 1, "min_accuracy": 0.0})

    assert run.phase == "Succeeded", run.explain()
    (promoted,) = backend.objects.claim("model-registry").glob("versions/*/*")
    assert promoted.stat().st_size > 0
    assert 0 <= run.output("wait", "accuracy") <= 1
    assert run.artifact("wait", "model")["uri"].startswith(f"{run.uri}/wait/")


@in_installation("default")
@requires("torch", "numpy")
def test_sweep_trains_once_for_each_rate_and_promotes_the_best_model(
    make_installation, settings, on_cluster, cluster, namespace
):
    backend = make_installation(**settings)

    run = backend.run(PIPELINES / "sweep.yaml", {**on_cluster, "learning_rates": [0.001, 0.01]})

    assert run.phase == "Succeeded", run.explain()
    trained = [node.execution.outputs["job"]["name"] for node in run.tasks("train")]
    jobs = {job["metadata"]["name"] for job in cluster.objects("TrainJob", namespace)}
    assert len(set(trained)) == 2
    assert set(trained) <= jobs
    assert run.pipeline_output("Output")["name"] in trained
    (promoted,) = backend.objects.claim("model-registry").glob("versions/*/*")
    assert promoted.stat().st_size > 0


@in_installation("default")
def test_tune_forecast_searches_trains_with_the_best_parameters_and_promotes_the_model(
    make_installation, settings, config, cluster, namespace
):
    backend = make_installation(**settings)

    run = backend.run(
        PIPELINES / "tune_forecast.yaml", {"backend": "kubernetes", "backend_config": config, "trials": 2}
    )

    assert run.phase == "Succeeded", run.explain()
    best = run.pipeline_output("Output")
    assert run.output("train", "result")["learning_rate"] == best["learning_rate"]
    assert run.output("train", "error") < run.output("search", "metric")
    (promoted,) = backend.objects.claim("model-registry").glob("versions/*/*")
    assert json.loads(promoted.read_text())["day"] == "2026-01-31"


def test_the_same_files_are_fetched_once(make_installation, config, tmp_path):
    @dsl.pipeline(name="fetch")
    def fetch(backend_config: dict, storage_uri: str):
        initialize_task("dataset", storage_uri=storage_uri, backend="kubernetes", backend_config=backend_config)

    backend, documents = make_installation(), compiled(fetch, tmp_path)
    parameters = {"storage_uri": "s3://data/digits", "backend_config": config}

    runs = [backend.run(documents, parameters) for _ in range(2)]

    assert [run.phase for run in runs] == ["Succeeded", "Succeeded"], runs[0].explain()
    assert [run.task("look").cached for run in runs] == [False, False]
    assert [run.task("initialize-dataset").cached for run in runs] == [False, True]


@pytest.fixture
def torchtune(cluster, namespace, tmp_path):
    """The runtime of the recipe, with a program in place of torchtune, and the Secret with the token."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tune").write_text('#!/bin/sh\necho "fine-tuned with $*"\n')
    (tmp_path / "bin" / "tune").chmod(0o755)
    cluster.load_stock_runtimes()
    path = {"name": "PATH", "value": f"{tmp_path / 'bin'}:/usr/bin:/bin"}

    def set_path(runtime):
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
            for container in job["template"]["spec"]["template"]["spec"]["containers"]:
                container["env"] = [*container.get("env", []), path]

    cluster.update("ClusterTrainingRuntime", "torchtune-llama3.2-1b", set_path)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "huggingface", "namespace": namespace}}
    cluster.add({**secret, "data": {"token": "aGZfdG9rZW4="}})


@in_installation("logs-off")
@pytest.mark.usefixtures("torchtune")
def test_finetune_llm_runs_a_recipe(make_installation, settings, config):
    backend = make_installation(**settings)

    run = backend.run(PIPELINES / "finetune_llm.yaml", {"backend_config": config})

    assert run.phase == "Succeeded", run.explain()
    assert "fine-tuned with run" in run.task("wait").log
    assert run.output("wait", "status") == "Complete"


def test_every_committed_pipeline_is_here():
    # tests/kfp/test_kfp_first_run.py runs retrain_scheduled.
    assert {path.stem for path in PIPELINES.glob("*.yaml")} == {
        "finetune_llm",
        "retrain_digits",
        "retrain_scheduled",
        "sweep",
        "tune_forecast",
    }


# The components, as a team uses them that has nothing but their YAML.


def load(name):
    return components.load_component_from_file(str(COMPONENTS / f"{name}.yaml"))


def request_of(func, **func_args):
    trainer = CustomTrainer(func=func, func_args=func_args or None)
    return request_builder.build_request_data(backend=backend_for("kubernetes"), runtime="python", trainer=trainer)


def train_on_a_cluster_pipeline():
    """Fetch, train twice on the cluster, and take the best job if it is good enough."""
    request = request_of(definitions.train_a_little, epochs=1, learning_rate=0.1)

    @dsl.pipeline(name="train-on-a-cluster")
    def train_on_a_cluster(backend_config: dict, storage_uri: str):
        where = {"backend": "kubernetes", "backend_config": backend_config}
        looked = load("look")(storage_uri=storage_uri, run_id=RUN_ID)
        dataset = load("initialize_dataset")(storage_uri=storage_uri, version=looked.outputs["version"], **where)
        pretrained = load("initialize_model")(storage_uri=storage_uri, **where)
        with dsl.ParallelFor([1, 2]) as nodes:
            trained = load("train")(
                request=request,
                num_nodes=nodes,
                dataset=dataset.outputs["dataset"],
                pretrained=pretrained.outputs["model"],
                metric_name="accuracy",
                run_id=RUN_ID,
                task_name=TASK_NAME,
                **where,
            )
        best = load("best_of")(
            jobs=dsl.Collected(trained.outputs["job"]), metric_name="accuracy", backend_config=backend_config
        )
        load("evaluate_gate")(metrics=best.outputs["metrics"], at_least={"accuracy": 0.5})

    return train_on_a_cluster


def train_in_the_step_pipeline():
    """Fetch into KFP's object store, train in the step itself, and promote the model."""

    @dsl.pipeline(name="train-in-the-step")
    def train_in_the_step(storage_uri: str, env: dict, registry: str):
        dataset = load("initialize_dataset")(storage_uri=storage_uri, env=env)
        trained = load("train")(
            request=request_of(definitions.train_a_little, epochs=1, learning_rate=0.1),
            dataset=dataset.outputs["dataset"],
            metric_name="accuracy",
            run_id=RUN_ID,
            task_name=TASK_NAME,
        )
        model, metric = trained.outputs["model"], trained.outputs["metric"]
        load("promote")(model=model, metric=metric, registry=registry, run_id=RUN_ID)

    return train_in_the_step


def search_in_the_step_pipeline():
    """Search in the step itself."""

    @dsl.pipeline(name="search-in-the-step")
    def search_in_the_step():
        load("search")(
            request=request_of(definitions.train_a_little, epochs=1, learning_rate=0.5),
            search_space={"learning_rate": [0.1]},
            objectives=[{"metric": "accuracy", "direction": "maximize"}],
            trial_config={"num_trials": 1},
            run_id=RUN_ID,
            task_name=TASK_NAME,
        )

    return search_in_the_step


def promote_nothing_pipeline():
    """Promote a model by a metric without a name."""

    @dsl.pipeline(name="promote-nothing")
    def promote_nothing(registry: str):
        request = request_of(definitions.train_a_little, epochs=1, learning_rate=0.1)
        trained = load("train")(request=request, run_id=RUN_ID, task_name=TASK_NAME)
        load("promote")(
            model=trained.outputs["model"], metric=trained.outputs["metric"], registry=registry, run_id=RUN_ID
        )

    return promote_nothing


def manage_pipeline():
    """Submit, suspend and resume twice, wait, and delete the jobs of the run at its end."""
    request = request_of(definitions.train_a_little, epochs=1, learning_rate=0.1)

    @dsl.pipeline(name="manage")
    def manage(backend_config: dict):
        where = {"backend": "kubernetes", "backend_config": backend_config}
        clean = load("delete")(run_id=RUN_ID, task_name=TASK_NAME, **where)
        with dsl.ExitHandler(clean):
            submitted = load("submit")(request=request, run_id=RUN_ID, task_name=TASK_NAME, **where)
            job = submitted.outputs["job"]
            last = submitted
            for name in ("suspend", "resume", "suspend", "resume"):
                change = load(name)
                last = change(job=job, run_id=RUN_ID, task_name=TASK_NAME, backend_config=backend_config).after(last)
            load("wait")(job=job, backend_config=backend_config).after(last)

    return manage


@in_installation("default")
def test_components_fetch_train_and_compare_on_a_cluster(make_installation, settings, config, tmp_path):
    backend = make_installation(**settings)
    parameters = {"backend_config": config, "storage_uri": "s3://data/digits"}

    run = backend.run(compiled(train_on_a_cluster_pipeline(), tmp_path), parameters)

    assert run.phase == "Succeeded", run.explain()
    assert run.output("evaluate-gate", "passed") is True


@in_installation("default")
def test_a_metric_that_nobody_has_named_is_null_and_promotes_nothing(make_installation, settings, tmp_path):
    backend = make_installation(**settings)

    run = backend.run(compiled(promote_nothing_pipeline(), tmp_path), {"registry": str(tmp_path / "registry")})

    assert run.phase == "Failed"
    assert run.output("train", "metric") is None
    assert 'got null for input parameter "metric"' in run.explain()
    assert not (tmp_path / "registry").exists()


def test_components_fetch_train_and_promote_in_their_steps(make_installation, settings, storage, tmp_path):
    backend = make_installation(**settings)
    backend.objects.host_folders.append(tmp_path / "registry")
    (tmp_path / "registry").mkdir()
    parameters = {
        "storage_uri": "s3://data/digits",
        "env": {"ENDPOINT": storage},
        "registry": str(tmp_path / "registry"),
    }

    run = backend.run(compiled(train_in_the_step_pipeline(), tmp_path), parameters)

    assert run.phase == "Succeeded", run.explain()
    assert [path.read_text() for path in (tmp_path / "registry").glob("versions/*/*")] == ["weights"]


@in_installation("default")
def test_a_search_in_the_step_gives_the_parameters_of_the_best_trial(make_installation, settings, tmp_path):
    run = make_installation(**settings).run(compiled(search_in_the_step_pipeline(), tmp_path), {})

    assert run.phase == "Succeeded", run.explain()
    assert run.output("search", "parameters") == {"learning_rate": 0.1}


@in_installation("default")
def test_components_manage_a_job_and_an_exit_task_deletes_it(
    make_installation, settings, config, tmp_path, cluster, namespace
):
    run = make_installation(**settings).run(compiled(manage_pipeline(), tmp_path), {"backend_config": config})

    assert run.phase == "Succeeded", run.explain()
    assert run.output("delete", "deleted") == [run.output("submit", "job")["name"]]
    changes = ("suspend", "resume", "suspend-2", "resume-2")
    assert [run.task(name).cached for name in changes] == [False] * 4
    assert cluster.objects("TrainJob", namespace) == []


def test_a_loaded_component_that_must_run_is_never_taken_from_the_cache(make_installation, tmp_path):
    """Another team loads the YAML, and KFP's default is to cache."""
    (tmp_path / "data").mkdir()

    @dsl.pipeline(name="nightly")
    def nightly(storage_uri: str):
        load("look")(storage_uri=storage_uri, run_id=RUN_ID)

    backend, documents = make_installation(), compiled(nightly, tmp_path)
    backend.objects.host_folders.append(tmp_path / "data")

    runs = [backend.run(documents, {"storage_uri": (tmp_path / "data").as_uri()}) for _ in range(2)]

    assert [run.task("look").cached for run in runs] == [False, False]


def test_every_committed_component_is_here(tmp_path):
    used = set()
    pipelines = (train_on_a_cluster_pipeline, train_in_the_step_pipeline, search_in_the_step_pipeline, manage_pipeline)
    for make_pipeline in pipelines:
        executors = compiled(make_pipeline(), tmp_path)[0]["deploymentSpec"]["executors"].values()
        used |= {executor["container"]["args"][0] for executor in executors}

    assert {path.stem for path in COMPONENTS.glob("*.yaml")} == used
