"""Validation of requests against runtimes before anything is created."""

from __future__ import annotations

import pytest
from fake_cluster import crds
from k8s_crds import VERSIONS, runtime, server

from trainer_core.backends.trainer_v2 import validation
from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.k8s import labels, runtimes
from trainer_core.model.request import TrainJobRequest

SDK = "trainer.kubeflow.org/kubeflow-sdk"
HF = {"storage_uri": "hf://tatsu-lab/alpaca"}
CODE = {"kind": "source", "text": "def train(): pass\n", "entry": "train"}


def a_request(*, name="job", trainer=None, **fields):
    return TrainJobRequest.parse({"name": name, **({"trainer": trainer} if trainer else {}), **fields})


def function(**fields):
    return {"kind": "custom", "code": CODE, **fields}


def container(**fields):
    return {"kind": "container", "image": "x:1", **fields}


def recipe(peft=None, **fields):
    config = {"epochs": 1, **({"peft_config": peft} if peft else {})}
    return {"kind": "builtin", "config": config, **fields}


def a_patch(pod=None, *, job="node", manager=SDK, **jobset):
    jobs = [{"name": job, "template": {"spec": {"template": {"spec": pod or {}}}}}]
    return {"manager": manager, "trainingRuntimeSpec": {"template": {**jobset, "spec": {"replicatedJobs": jobs}}}}


def check(request, raw="torch-distributed", version="2.3", namespace="team"):
    validation.check_request(request, runtime(raw) if isinstance(raw, str) else raw, server(version), namespace)


def changed(name, change):
    """Return a stock runtime with a change."""
    raw = runtime(name)
    change(raw)
    return raw


def job_of(raw, name="node"):
    return runtimes.find_replicated_job(raw, name)


def unlabelled(raw):
    del job_of(raw)["template"]["metadata"]["labels"][runtimes.ANCESTOR_LABEL]


def renamed_container(raw):
    runtimes.get_pod_spec(job_of(raw))["containers"][0]["name"] = "main"


def renamed_job(raw):
    job_of(raw)["name"] = "trainer"


def no_policy(raw):
    del raw["spec"]["mlPolicy"]


@pytest.mark.parametrize("name", [name for name in crds.stock_runtimes() if name.endswith("-distributed")])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_container_on_two_nodes_is_accepted_with_every_stock_runtime(name, version):
    check(a_request(trainer=container(num_nodes=2, resources_per_node={"cpu": 2})), name, version)


@pytest.mark.parametrize("name", [name for name in crds.stock_runtimes() if name.startswith("torchtune")])
def test_a_recipe_is_accepted_with_every_stock_torchtune_runtime(name):
    check(a_request(trainer=recipe({"lora_attn_modules": ["q_proj"]})), name)


@pytest.mark.parametrize(
    ("trainer", "raw", "words"),
    [
        (function(), "torchtune-llama3.2-1b", "CustomTrainer can't be used with torchtune-llama3.2-1b runtime"),
        (container(), "torchtune-llama3.2-1b", "CustomTrainerContainer can't be used with torchtune-llama3.2-1b"),
        (recipe(), "torch-distributed", "BuiltinTrainer can't be used with torch-distributed runtime"),
        (function(num_nodes=2), "flux-distributed", "CustomTrainer can't be used with flux-distributed runtime"),
    ],
)
def test_a_trainer_is_refused_with_a_runtime_for_another_kind_of_trainer(trainer, raw, words):
    with pytest.raises(ValueError, match=words):
        check(a_request(trainer=trainer), raw)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unlabelled, "has no replicated job with the label"),
        (renamed_container, "has no container 'node' in its trainer job"),
    ],
)
def test_a_trainer_is_refused_if_the_runtime_has_no_place_for_it(change, words):
    with pytest.raises(UnsupportedError, match=words):
        check(a_request(trainer=container()), changed("torch-distributed", change))


def test_a_runtime_without_a_trainer_job_is_accepted_without_a_trainer():
    check(a_request(), changed("torch-distributed", unlabelled))


def test_resources_that_the_controller_drops_are_refused():
    raw = changed("torch-distributed", no_policy)
    with pytest.raises(UnsupportedError, match=r"resources_per_node: .* has no mlPolicy"):
        check(a_request(trainer=container(resources_per_node={"cpu": 1})), raw, "2.3")


def test_resources_without_a_policy_are_accepted_on_other_versions():
    raw = changed("torch-distributed", no_policy)
    check(a_request(trainer=container(resources_per_node={"cpu": 1})), raw, "2.2")


def test_independent_nodes_need_no_policy():
    check(a_request(trainer=function(num_nodes=8)), changed("torch-distributed", no_policy))


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("torch-distributed", "PET_NNODES"),
        ("torch-distributed", "PET_MASTER_ADDR"),
        ("deepspeed-distributed", "OMPI_MCA_plm_rsh_args"),
        ("jax-distributed", "JAX_PROCESS_ID"),
        ("xgboost-distributed", "DMLC_TASK_ID"),
    ],
)
def test_environment_variables_of_the_policy_are_reserved(raw, name):
    with pytest.raises(InvalidRequestError, match=f"trainer.env must not set {name}"):
        check(a_request(trainer=container(env={name: "1"})), raw)


def test_environment_variables_of_another_policy_are_accepted():
    check(a_request(trainer=container(env={"PET_NNODES": "1"})), "jax-distributed")


@pytest.mark.parametrize("raw", ["jax-distributed", "xgboost-distributed"])
def test_num_proc_per_node_is_refused_without_a_launcher(raw):
    with pytest.raises(UnsupportedError, match=r"num_proc_per_node=4: .* starts 1 on each node"):
        check(a_request(trainer=container(num_proc_per_node=4)), raw)


def test_xgboost_accepts_one_process_per_gpu():
    check(a_request(trainer=container(num_proc_per_node=4, resources_per_node={"gpu": 4})), "xgboost-distributed")


@pytest.mark.parametrize("raw", ["torch-distributed", "deepspeed-distributed"])
def test_num_proc_per_node_is_accepted_with_a_launcher(raw):
    check(a_request(trainer=container(num_proc_per_node=4)), raw)


def test_flux_requires_num_nodes():
    with pytest.raises(UnsupportedError, match="num_nodes must be set"):
        check(a_request(trainer=container()), "flux-distributed")


def subdomain(raw):
    raw["spec"]["template"]["spec"]["network"] = {"subdomain": "elsewhere"}


def without_names(raw):
    raw["spec"]["template"]["spec"]["network"] = {"enableDNSHostnames": False}


@pytest.mark.parametrize("raw", ["torch-distributed", "jax-distributed", "xgboost-distributed"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (renamed_job, "its trainer job is named 'trainer'"),
        (subdomain, r"network\.subdomain is 'elsewhere'"),
        (without_names, r"network\.enableDNSHostnames is false"),
    ],
)
def test_several_nodes_without_a_rendezvous_host_are_refused(raw, change, words):
    with pytest.raises(UnsupportedError, match=words):
        check(a_request(trainer=container(num_nodes=2)), changed(raw, change))


def test_one_container_needs_no_rendezvous_host():
    check(a_request(trainer=container()), changed("torch-distributed", renamed_job))


@pytest.mark.parametrize("missing", ["node", "launcher"])
def test_several_mpi_nodes_need_launcher_and_node_jobs(missing):
    raw = runtime("deepspeed-distributed")
    jobs = raw["spec"]["template"]["spec"]["replicatedJobs"]
    job_of(raw)["template"]["metadata"] = job_of(raw, "launcher")["template"]["metadata"]
    jobs[:] = [job for job in jobs if job["name"] != missing]
    with pytest.raises(UnsupportedError, match=f"num_nodes must be 1: .* lacks replicated job {missing}"):
        check(a_request(trainer=container(num_nodes=2)), raw)


def test_a_job_name_is_refused_if_pod_names_exceed_the_label_limit():
    raw = runtime("torch-distributed")
    job = {"name": "a-job-with-a-name-of-37-characters-xx", "template": {"spec": {"template": {"spec": {}}}}}
    raw["spec"]["template"]["spec"]["replicatedJobs"].append(job)
    check(a_request(name="a" * 15, trainer=container()), raw)
    with pytest.raises(UnsupportedError, match=r"job name .a{16}. has 16 characters, .* use at most 15"):
        check(a_request(name="a" * 16, trainer=container()), raw)


def test_the_longest_accepted_name_fits_the_longest_step():
    check(a_request(name="a" * 33, trainer=recipe()), "torchtune-llama3.2-1b")


def test_more_pods_need_a_shorter_job_name():
    raw = runtime("torchtune-llama3.2-1b")
    job_of(raw, "dataset-initializer")["template"]["spec"]["parallelism"] = 11
    with pytest.raises(UnsupportedError, match="use at most 32 with runtime"):
        check(a_request(name="a" * 33, trainer=recipe()), raw)


def test_a_runtime_of_another_namespace_is_refused():
    raw = runtime("torch-distributed")
    raw["metadata"]["namespace"] = "other"
    with pytest.raises(UnsupportedError, match="of namespace 'other', but the job is submitted to 'team'"):
        check(a_request(trainer=container()), raw)


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_deadline_is_refused_on_trainer_before_2_2(version):
    with pytest.raises(UnsupportedError, match="active_deadline_seconds"):
        check(a_request(trainer=container(), active_deadline_seconds=60), version=version)


def test_a_workspace_is_refused_outside_initialize():
    with pytest.raises(UnsupportedError, match="only by `initialize`"):
        check(a_request(trainer=container(), workspace={"claim": "data"}))


@pytest.mark.parametrize(
    ("what", "key"),
    [
        ("labels", labels.MANAGED_BY),
        ("labels", labels.OWNER),
        ("annotations", labels.REQUEST),
        ("annotations", labels.OUTCOME),
        ("annotations", labels.DIAGNOSIS),
    ],
)
def test_reserved_labels_and_annotations_are_refused(what, key):
    with pytest.raises(InvalidRequestError, match=f"metadata.{what}: {key}"):
        check(a_request(trainer=container(), metadata={what: {key: "mine"}}))


@pytest.mark.parametrize(
    ("role", "uri", "known"),
    [
        ("dataset", "file:///data", "hf://, s3://, cache://, pvc://"),
        ("model", "cache://a/b", "hf://, s3://, pvc://"),
        ("model", "gs://bucket/key", "hf://, s3://, pvc://"),
    ],
)
def test_an_unsupported_source_scheme_is_refused(role, uri, known):
    request = a_request(trainer=recipe(), initializer={role: {"storage_uri": uri}})
    with pytest.raises(
        UnsupportedError, match=f"initializer.{role}: .* is not supported on a cluster.*; use one of {known}"
    ):
        check(request, "torchtune-llama3.2-1b")


def without_step(raw):
    jobs = raw["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[:] = [job for job in jobs if job["name"] != "dataset-initializer"]


def without_container(raw):
    runtimes.get_pod_spec(job_of(raw, "dataset-initializer"))["containers"][0]["name"] = "fetch"


def without_label(raw):
    job_of(raw, "dataset-initializer")["template"]["metadata"]["labels"].clear()


def without_mount(raw):
    runtimes.get_pod_spec(job_of(raw, "dataset-initializer"))["containers"][0]["volumeMounts"].clear()


def without_source(raw):
    runtimes.get_pod_spec(job_of(raw, "dataset-initializer"))["containers"][0]["env"].clear()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_step, "has no replicated job 'dataset-initializer'"),
        (without_container, "has no container 'dataset-initializer'"),
        (without_label, "has no label .*trainjob-ancestor-step=dataset-initializer"),
        (without_mount, "does not mount volume 'initializer'"),
    ],
)
def test_an_initializer_needs_its_step_in_the_runtime(change, words):
    request = a_request(trainer=recipe(), initializer={"dataset": HF})
    with pytest.raises(UnsupportedError, match=f"initializer.dataset: .*{words}"):
        check(request, changed("torchtune-llama3.2-1b", change))


def test_a_mount_added_by_a_patch_is_accepted():
    volume = {"name": "initializer", "emptyDir": {}}
    mount = {"name": "initializer", "mountPath": "/workspace"}
    pod = {"volumes": [volume], "containers": [{"name": "dataset-initializer", "volumeMounts": [mount]}]}
    request = a_request(
        trainer=recipe(), initializer={"dataset": HF}, patches=[a_patch(pod, job="dataset-initializer")]
    )
    check(request, changed("torchtune-llama3.2-1b", without_mount))


def test_older_versions_need_no_initializer_mount():
    request = a_request(trainer=recipe(), initializer={"dataset": HF})
    check(request, changed("torchtune-llama3.2-1b", without_mount), "2.2")


def test_a_cache_gets_the_mount_that_the_stock_runtime_lacks():
    source = {"storage_uri": "cache://a/b", "env": {"METADATA_LOC": "s3://a", "CLUSTER_SIZE": "3"}}
    check(a_request(trainer=function(), initializer={"dataset": source}), "torch-distributed-with-cache")


def test_an_initializer_step_without_a_source_is_refused():
    with pytest.raises(UnsupportedError, match="without a default source"):
        check(a_request(trainer=function()), "torch-distributed-with-cache")


def test_an_initializer_step_with_a_default_source_is_accepted():
    check(a_request(trainer=recipe()), "torchtune-llama3.2-1b")
    with pytest.raises(UnsupportedError, match="add a dataset initializer"):
        check(a_request(trainer=recipe()), changed("torchtune-llama3.2-1b", without_source))


@pytest.mark.parametrize("uri", ["pvc://UPPER/x", "pvc://claim/../x", "pvc:///x"])
def test_an_invalid_pvc_uri_is_refused(uri):
    with pytest.raises(InvalidRequestError, match=r"initializer\.dataset"):
        check(a_request(trainer=function(), initializer={"dataset": {"storage_uri": uri}}))


def test_a_pvc_source_needs_no_initializer_step():
    check(a_request(trainer=function(), initializer={"dataset": {"storage_uri": "pvc://claim/dataset"}}))


@pytest.mark.parametrize("manager", ["kueue", "Example.com/x", "example.com/", "/x", None])
def test_a_manager_must_be_a_domain_and_a_path(manager):
    with pytest.raises(InvalidRequestError, match="must be a domain and a path"):
        check(a_request(trainer=container(), patches=[a_patch(manager=manager)]))


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (a_patch(job="launcher"), "has no replicated job 'launcher'; its jobs are node"),
        (a_patch({"containers": [{"name": "main"}]}), "has no container 'main' there; it has node"),
        (a_patch({"initContainers": [{"name": "node"}]}), "initContainers: the runtime has no container 'node'"),
        (a_patch({"containers": [{"name": "node", "env": [{"name": "A", "value": "1"}]}]}), "set env of the trainer"),
        (
            a_patch({"containers": [{"name": "node", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}),
            "mounts volume 'data', which is neither in the runtime nor in the patch",
        ),
        (
            a_patch(metadata={"annotations": {"scheduling.volcano.sh/queue-name": "research"}}),
            "no podGroupPolicy.volcano",
        ),
    ],
)
def test_a_patch_of_something_that_the_runtime_lacks_is_refused(patch, words):
    with pytest.raises(UnsupportedError, match=words):
        check(a_request(trainer=container(), patches=[patch]))


def test_a_volcano_queue_is_accepted_with_a_volcano_runtime():
    raw = runtime("torch-distributed")
    raw["spec"]["podGroupPolicy"] = {"volcano": {}}
    patch = a_patch(metadata={"annotations": {"scheduling.volcano.sh/queue-name": "research"}})
    check(a_request(trainer=container(), patches=[patch]), raw)


def test_a_volume_claim_of_the_jobset_can_be_mounted():
    pod = {"containers": [{"name": "node", "volumeMounts": [{"name": "initializer", "mountPath": "/x"}]}]}
    check(a_request(trainer=recipe(), patches=[a_patch(pod)]), "torchtune-llama3.2-1b")


QLORA = {"lora_attn_modules": ["q_proj"], "quantize_base": True}


@pytest.mark.parametrize(
    ("trainer", "raw", "words"),
    [
        (recipe(num_nodes=2), "torchtune-llama3.2-1b", "num_nodes must be 1 for llama3_2/1B, got 2"),
        (recipe(QLORA, resources_per_node={"gpu": 1}), "torchtune-qwen2.5-1.5b", "no QLoRA recipe for qwen2_5/1.5B"),
        (recipe(QLORA), "torchtune-llama3.2-1b", r"QLoRA of llama3_2/1B needs one GPU per node, got 2"),
    ],
)
def test_a_request_without_a_torchtune_recipe_is_refused(trainer, raw, words):
    with pytest.raises(UnsupportedError, match=words):
        check(a_request(trainer=trainer), raw)


@pytest.mark.parametrize(
    "trainer",
    [
        recipe(QLORA, resources_per_node={"gpu": 1}),
        recipe(QLORA, num_proc_per_node=1),
        recipe({**QLORA, "use_dora": True}),
        recipe({"lora_attn_modules": ["q_proj"], "quantize_base": False}),
    ],
)
def test_a_request_with_a_torchtune_recipe_is_accepted(trainer):
    check(a_request(trainer=trainer), "torchtune-llama3.2-1b")


def large(raw):
    raw["metadata"]["name"] = "torchtune-llama3.3-70b"


def test_the_large_model_supports_several_nodes_without_lora():
    check(a_request(trainer=recipe(num_nodes=2)), changed("torchtune-llama3.2-1b", large))
    with pytest.raises(UnsupportedError, match="num_nodes must be 1 with LoRA"):
        check(
            a_request(trainer=recipe({"lora_attn_modules": ["q_proj"]}, num_nodes=2)),
            changed("torchtune-llama3.2-1b", large),
        )


def test_a_torchtune_runtime_must_be_named_after_its_model():
    def renamed(raw):
        raw["metadata"]["name"] = "my-tune"

    with pytest.raises(UnsupportedError, match=r"the name must be one of torchtune-llama3.2-1b"):
        check(a_request(trainer=recipe()), changed("torchtune-llama3.2-1b", renamed))


def test_a_torchtune_container_must_not_set_arguments_of_the_runtime():
    trainer = container(command=["tune", "run"], args=["output_dir=/x"])

    def renamed(raw):
        raw["metadata"]["name"] = "torchtune-llama3.2-1b"

    with pytest.raises(UnsupportedError, match=r"trainer\.args: output_dir is set by the runtime"):
        check(a_request(trainer=trainer), changed("torch-distributed", renamed))


def deprecated(raw):
    raw["metadata"]["labels"]["trainer.kubeflow.org/support"] = "deprecated"


def test_a_deprecated_runtime_gives_a_warning():
    raw = changed("torch-distributed", deprecated)
    check(a_request(trainer=container()), raw)
    (warning,) = validation.list_warnings(a_request(trainer=container()), raw)
    assert "'torch-distributed' is deprecated" in warning


def test_a_launcher_that_counts_as_a_node_gives_a_warning():
    (warning,) = validation.list_warnings(a_request(trainer=container(num_nodes=1)), runtime("deepspeed-distributed"))
    assert "on its launcher and on one more node" in warning


def test_most_jobs_give_no_warning():
    assert validation.list_warnings(a_request(trainer=container()), runtime("torch-distributed")) == []


@pytest.mark.parametrize(
    "request_fields",
    [
        {"trainer": container(env={"PET_NNODES": "1"})},
        {"trainer": recipe()},
        {"trainer": container(), "patches": [a_patch(job="launcher")]},
        {"trainer": container(), "initializer": {"dataset": HF}},
    ],
)
def test_every_refusal_is_one_line(request_fields):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        check(a_request(**request_fields))
