"""train_task: a training definition becomes a task when a pipeline is compiled."""

import hashlib
import json

import kfp_definitions as definitions
import pytest
import yaml
from kfp import dsl
from kfp.dsl.pipeline_channel import PipelineParameterChannel
from kfp_driver import REPOSITORY, compiled

from kfp_components.container_spec import add_interface_digest
from kfp_components.step.request import load_request
from kfp_components.step.request_encoding import decode_request
from kfp_components.suspend import suspend
from kfp_components.tasks import train_task, wait_task
from trainer_core import (
    Checkpoints,
    CustomTrainer,
    CustomTrainerContainer,
    DeleteAfter,
    HuggingFaceDatasetInitializer,
    Initializer,
    Labels,
    LocalProcessBackendConfig,
    Name,
    OnBackend,
    QueueName,
    RestartPolicy,
    RuntimePatch,
    SecretRef,
    Stalled,
    Suspend,
    TrainerClient,
    VolumeModelInitializer,
)

#: A text that no compression shortens.
NOISE = hashlib.shake_256()
TRAINER = CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 1, "learning_rate": 0.1})


def train_of(pipeline, folder):
    """The task that trains."""
    tasks = compiled(pipeline, folder)[0]["root"]["dag"]["tasks"]
    return tasks.get("train") or tasks["submit"]


def test_a_definition_becomes_the_request_of_the_task(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, runtime="python", options=[Labels({"team": "vision"})])

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["runtime"] == {"name": "python"}
    assert request["metadata"] == {"labels": {"team": "vision"}}
    assert "def train_a_little" in request["trainer"]["code"]["text"]


@pytest.mark.parametrize(
    ("option", "field", "expected"),
    [
        (RestartPolicy(), "restart_policy", {"max_restarts": 3, "free": [], "never": [], "exit_codes": {}}),
        (RestartPolicy(free=("Preempted",), exit_codes={17: "free"}), "restart_policy", {"exit_codes": {"17": "free"}}),
        (Stalled("20m", startup="2h"), "stalled", {"after": "20m", "startup": "2h"}),
        (Checkpoints(every_seconds=60), "checkpoints", {"every_seconds": 60}),
    ],
)
def test_an_option_with_settings_is_compiled(option, field, expected, tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, runtime="python", options=[option])

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request[field].items() >= expected.items()


def test_the_task_is_never_cached(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER)

    assert train_of(pipeline, tmp_path)["cachingOptions"] == {}


def inputs_of(pipeline, folder):
    """What the task that trains is given: constants, and the names of pipeline parameters."""
    given = train_of(pipeline, folder)["inputs"]["parameters"]
    return {
        name: value["runtimeValue"]["constant"] if "runtimeValue" in value else value["componentInputParameter"]
        for name, value in given.items()
    }


def test_pipeline_parameters_reach_the_task(tmp_path):
    @dsl.pipeline
    def pipeline(nodes: int, backend: str):
        train_task(trainer=TRAINER, num_nodes=nodes, backend=backend)

    inputs = inputs_of(pipeline, tmp_path)

    assert (inputs["num_nodes"], inputs["backend"]) == ("nodes", "backend")


def test_a_pipeline_parameter_in_the_arguments_is_an_input_of_its_own_type(tmp_path):
    @dsl.pipeline
    def pipeline(epochs: int, notes: list[str]):
        train_task(trainer=TRAINER, func_args={"epochs": epochs, "tags": notes})

    inputs = inputs_of(pipeline, tmp_path)
    declared = compiled(pipeline, tmp_path)[0]["components"]["comp-submit"]["inputDefinitions"]["parameters"]

    assert (inputs["func_args_epochs"], inputs["func_args_tags"]) == ("epochs", "notes")
    assert declared["func_args_epochs"]["parameterType"] == "NUMBER_INTEGER"
    assert declared["func_args_tags"]["parameterType"] == "LIST"
    assert inputs["request"]["trainer"]["code"]["args"] == {
        "epochs": {"trainjob.input": "func_args_epochs"},
        "learning_rate": 0.1,
        "tags": {"trainjob.input": "func_args_tags"},
    }


def test_a_pipeline_parameter_deep_in_the_arguments_is_an_input_too(tmp_path):
    @dsl.pipeline
    def pipeline(note: str):
        train_task(trainer=TRAINER, func_args={"tags": ["a", {"b": note}]})

    inputs = inputs_of(pipeline, tmp_path)

    assert inputs["func_args_tags_1_b"] == "note"
    tags = inputs["request"]["trainer"]["code"]["args"]["tags"]
    assert tags == ["a", {"b": {"trainjob.input": "func_args_tags_1_b"}}]


def test_the_id_of_the_run_in_the_arguments_is_a_whole_input_which_kfp_resolves(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, func_args={"note": dsl.PIPELINE_JOB_ID_PLACEHOLDER})

    assert inputs_of(pipeline, tmp_path)["func_args_note"] == "{{$.pipeline_job_uuid}}"


def test_an_argument_that_the_function_requires_may_come_from_the_pipeline_alone(tmp_path):
    @dsl.pipeline
    def pipeline(epochs: int, rate: float):
        train_task(
            trainer=CustomTrainer(func=definitions.train_a_little), func_args={"epochs": epochs, "learning_rate": rate}
        )

    assert inputs_of(pipeline, tmp_path)["func_args_epochs"] == "epochs"


def test_a_dict_as_pipeline_parameter_may_hold_all_arguments(tmp_path):
    @dsl.pipeline
    def pipeline(arguments: dict):
        train_task(trainer=CustomTrainer(func=definitions.train_a_little), func_args=arguments)

    inputs = inputs_of(pipeline, tmp_path)

    assert inputs["func_args"] == "arguments"
    assert inputs["request"]["trainer"]["code"]["args"] == {}


def test_an_argument_that_the_function_does_not_take_is_refused_when_the_pipeline_is_compiled():
    with pytest.raises(ValueError, match="train_a_little has no parameter epoch; its parameters are"):
        train_task(trainer=TRAINER, func_args={"epoch": 3})


def test_arguments_without_a_training_function_are_refused():
    trainer = CustomTrainerContainer(image="registry/train:1.0")

    with pytest.raises(ValueError, match="func_args are for a training function, and the task has CustomTrainerCont"):
        train_task(trainer=trainer, func_args={"epochs": 3})


def test_a_trainer_may_be_a_dict(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer={"image": "registry/train:1.0"}, backend="local")

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["trainer"] == {"kind": "container", "image": "registry/train:1.0"}


def test_an_option_that_the_backend_does_not_take_is_refused():
    with pytest.raises(ValueError, match="RuntimePatch"):
        train_task(trainer=TRAINER, options=[RuntimePatch()], backend="local")


def test_options_for_a_backend_that_is_a_pipeline_parameter_are_checked_when_the_task_runs(tmp_path):
    @dsl.pipeline
    def pipeline(backend: str):
        train_task(trainer=TRAINER, options=[QueueName("nightly"), OnBackend("local", Suspend())], backend=backend)

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]
    assert request["options"] == ["QueueName"]
    local = TrainerClient(LocalProcessBackendConfig(home=str(tmp_path / "home")))
    with pytest.raises(ValueError, match="QueueName option is not compatible with LocalProcessBackend"):
        load_request(local, request, None)
    accepted = load_request(local, {**request, "options": []}, None)
    assert accepted["suspend"] is True
    assert not accepted.keys() & {"options", "on_backend"}


def encoded_request(pipeline, folder):
    (executor,) = compiled(pipeline, folder)[0]["deploymentSpec"]["executors"].values()
    (argument,) = [arg for arg in executor["container"]["args"] if arg.startswith("--request=")]
    return decode_request(argument.removeprefix("--request="))


@pytest.mark.parametrize(
    "text",
    ["cost $$5", "$(HOME)", "{{$}}", "{{$.inputs.parameters['x']}}", "{{workflow.name}}", "done \N{PARTY POPPER}"],
)
def test_a_text_that_argo_kubernetes_or_kfp_would_replace_or_refuse_travels_encoded(tmp_path, text):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=CustomTrainerContainer(image="registry/train:1.0", env={"TEXT": text}))

    assert encoded_request(pipeline, tmp_path)["trainer"]["env"] == {"TEXT": text}


def test_a_constant_that_kfp_would_refuse_when_the_run_is_created_is_refused_when_it_is_compiled():
    @dsl.pipeline
    def pipeline():
        with pytest.raises(ValueError, match=r"job_name: KFP stores no characters beyond U\+FFFF, such as emoji"):
            train_task(trainer=TRAINER, job_name="digits-\N{PARTY POPPER}")
        train_task(trainer=TRAINER)

    assert pipeline.pipeline_spec


def test_an_argument_that_kubernetes_would_replace_travels_encoded(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, func_args={"note": "cost $$5 and $(X)"})

    assert encoded_request(pipeline, tmp_path)["trainer"]["code"]["args"]["note"] == "cost $$5 and $(X)"


def test_a_whole_number_that_a_double_cannot_hold_travels_encoded(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, func_args={"epochs": 2**53 + 1})

    assert encoded_request(pipeline, tmp_path)["trainer"]["code"]["args"]["epochs"] == 2**53 + 1


def test_a_pipeline_parameter_in_the_definition_is_refused(tmp_path):
    @dsl.pipeline
    def pipeline(name: str):
        with pytest.raises(ValueError, match="pass it by func_args"):
            train_task(trainer=CustomTrainerContainer(image="registry/train:1.0", env={"NAME": f"{name}"}))
        train_task(trainer=TRAINER)

    train_of(pipeline, tmp_path)


def test_more_than_an_argument_can_carry_is_refused():
    text = NOISE.hexdigest(100_000)
    env = {"A": text[:70_000], "B": text[70_000:140_000], "C": text[140_000:]}
    trainer = CustomTrainerContainer(image="registry/train:1.0", env=env)

    with pytest.raises(ValueError, match="KFP can pass 120000"):
        train_task(trainer=trainer)


def test_a_request_near_the_limit_fits_the_arguments_of_kfps_driver(tmp_path):
    """The driver takes no container of more than 131,072 bytes of escaped JSON."""
    text = NOISE.hexdigest(76_000)
    env = {"A": '<&>"\\\n' * 4_000 + text[:60_000], "B": text[60_000:]}
    trainer = CustomTrainerContainer(image="registry/train:1.0", env=env)

    @dsl.pipeline
    def pipeline():
        train_task(trainer=trainer)

    (executor,) = compiled(pipeline, tmp_path)[0]["deploymentSpec"]["executors"].values()
    size = len(json.dumps(json.dumps(executor["container"])))
    assert encoded_request(pipeline, tmp_path)["trainer"]["env"] == env
    assert 110_000 < size < 131_072


@pytest.mark.parametrize("backend", ["local", "debug"])
def test_a_backend_that_trains_in_the_step_gets_no_task_config(tmp_path, backend):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, backend=backend)

    assert "taskConfigPassthroughs" not in compiled(pipeline, tmp_path)[0]["components"]["comp-submit"]


def test_a_backend_that_is_a_pipeline_parameter_keeps_the_task_config(tmp_path):
    @dsl.pipeline
    def pipeline(backend: str):
        train_task(trainer=TRAINER, backend=backend)

    assert "taskConfigPassthroughs" in compiled(pipeline, tmp_path)[0]["components"]["comp-submit"]


def containers_of(pipeline, folder):
    executors = compiled(pipeline, folder)[0]["deploymentSpec"]["executors"].values()
    return [json.dumps(executor["container"], sort_keys=True) for executor in executors]


def test_tasks_with_other_outputs_have_other_containers(tmp_path):
    """KFP keeps one component for all equal containers of a pipeline."""

    @dsl.pipeline
    def pipeline(job: dict):
        wait_task(job=job, metrics=["accuracy"])
        wait_task(job=job, metrics=["loss"])

    first, second = containers_of(pipeline, tmp_path)

    assert first != second


def test_tasks_with_other_passthroughs_have_other_containers(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, backend="local")
        train_task(trainer=TRAINER, backend="kubernetes")

    first, second = containers_of(pipeline, tmp_path)

    assert first != second


def test_another_default_of_an_input_changes_the_arguments_which_are_in_the_cache_key():
    def component(default):
        @dsl.container_component
        def greet(name: str = default):
            return dsl.ContainerSpec(image="greet:1", args=["greet"])

        return add_interface_digest(greet).component_spec.implementation.container.args

    assert component("a") == component("a")
    assert component("a") != component("b")


def test_no_component_takes_a_list_of_artifacts(tmp_path):
    """KFP passes only the last item of such a list into a sub-pipeline."""
    files = (REPOSITORY / "kfp_components" / "components").glob("*.yaml")
    components = [spec for path in files for spec in yaml.safe_load(path.read_text())["components"].values()]

    inputs = [each for spec in components for each in spec["inputDefinitions"].get("artifacts", {}).values()]
    assert inputs
    assert not [each for each in inputs if each.get("isArtifactList")]


def test_initializers_and_options_are_part_of_the_definition(tmp_path):
    initializer = Initializer(
        dataset=HuggingFaceDatasetInitializer(storage_uri="hf://a/b", access_token=SecretRef("hugging-face", "token")),
        model=VolumeModelInitializer(storage_uri="pvc://models/base"),
    )

    @dsl.pipeline
    def pipeline():
        options = [Name("tune"), DeleteAfter(3600), RuntimePatch()]
        train_task(trainer=TRAINER, initializer=initializer, options=options, backend="kubernetes")

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["initializer"]["dataset"]["secrets"] == {"ACCESS_TOKEN": {"name": "hugging-face", "key": "token"}}
    assert request["initializer"]["model"]["storage_uri"] == "pvc://models/base"
    assert (request["name"], request["delete_after_seconds"]) == ("tune", 3600)


def test_a_distributed_config_is_part_of_the_definition_by_its_name(tmp_path):
    config = {"env": [{"name": "A", "value": "b"}], "runPolicy": {"suspend": True}}

    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, options=[{"DistributedConfig": config}], backend="kubernetes")

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["distributed"] == {"env": [{"name": "A", "value": "b"}]}
    assert request["suspend"] is True


def test_a_secret_as_text_is_refused():
    initializer = Initializer(dataset=HuggingFaceDatasetInitializer(storage_uri="hf://a/b", access_token="hf_secret"))

    with pytest.raises(ValueError, match="give SecretRef") as refused:
        train_task(trainer=TRAINER, initializer=initializer, backend="kubernetes")
    assert "hf_secret" not in str(refused.value)


def test_a_long_definition_travels_compressed(tmp_path):
    trainer = CustomTrainerContainer(image="registry/train:1.0", env={"TEXT": "x" * 20_000})

    @dsl.pipeline
    def pipeline():
        train_task(trainer=trainer)

    assert "request" not in inputs_of(pipeline, tmp_path)
    assert encoded_request(pipeline, tmp_path)["trainer"]["env"]["TEXT"] == "x" * 20_000
    assert (tmp_path / "pipeline.yaml").stat().st_size < 30_000


def test_metrics_become_outputs_of_one_task_alone(tmp_path):
    @dsl.pipeline
    def pipeline() -> float:
        trained = train_task(trainer=TRAINER, wait=True, metrics=["accuracy"])
        train_task(trainer=TRAINER, wait=True).after(trained)
        return trained.outputs["accuracy"]

    components = compiled(pipeline, tmp_path)[0]["components"]

    declared = [set(spec["outputDefinitions"]["parameters"]) for spec in components.values()]
    assert declared[0] - declared[1] == {"accuracy"}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"attempts": 3, "timeout": 60}, "attempts, timeout: only a task that waits takes it; give wait=True"),
        ({"attempts": -1, "wait": True}, "attempts must be at least 1, got -1"),
        ({"num_nodes": -1}, "num_nodes must be a whole number of at least 0, got -1"),
        ({"metrics": "accuracy", "wait": True}, "metrics must be a list of strings such as"),
        ({"metrics": [""], "wait": True}, "must be a non-empty string such as 'accuracy'"),
        ({"backend": "kubernetes", "backend_config": {"namespce": "a"}}, "namespce"),
        ({"backend": "kubernetes", "backend_config": ["a"]}, "settings of the kubernetes backend must be a dict"),
    ],
)
def test_an_input_that_no_run_could_use_is_refused_when_the_pipeline_is_compiled(inputs, message):
    with pytest.raises(ValueError, match=message) as refused:
        train_task(trainer=TRAINER, **inputs)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["num_nodes", "num_proc_per_node"])
def test_a_pipeline_parameter_as_a_field_of_the_trainer_is_refused_with_the_input_that_takes_it(name):
    parameter = PipelineParameterChannel("n", channel_type="Integer")
    with pytest.raises(ValueError, match=rf"input of the task: train_task\({name}=…\)"):
        CustomTrainer(func=print, **{name: parameter})


@pytest.mark.parametrize("name", ["model", "status", "top-1"])
def test_a_metric_that_cannot_be_an_output_is_refused(name):
    with pytest.raises(ValueError, match="cannot be an output"):
        wait_task(job={}, metrics=[name])


def test_metrics_of_a_job_that_is_not_waited_for_are_refused():
    with pytest.raises(ValueError, match="give wait=True"):
        train_task(trainer=TRAINER, metrics=["accuracy"])


def test_the_run_is_written_down_with_the_job(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER)

    parameters = train_of(pipeline, tmp_path)["inputs"]["parameters"]

    assert parameters["run_id"]["runtimeValue"]["constant"] == "{{$.pipeline_job_uuid}}"


def test_an_imported_component_that_changes_a_job_is_not_cached_and_names_itself():
    @dsl.pipeline(name="changes")
    def changes(job: dict):
        suspend(job=job)
        suspend(job=job)

    tasks = changes.pipeline_spec.root.dag.tasks
    constants = [
        {name: given.runtime_value.constant.string_value for name, given in task.inputs.parameters.items()}
        for task in tasks.values()
    ]

    assert [task.caching_options.enable_cache for task in tasks.values()] == [False, False]
    assert {each["task_name"] for each in constants} == {"{{$.pipeline_task_name}}"}
    assert {each["run_id"] for each in constants} == {"{{$.pipeline_job_uuid}}"}
