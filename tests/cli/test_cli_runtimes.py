"""`trainjob runtimes`: list, validate, create, compare, apply and delete runtimes."""

from __future__ import annotations

import json

import pytest
import yaml
from fake_cluster import Cluster

from trainer_core.cli import main
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, TRAINING_RUNTIMES, TRAINJOBS
from trainer_core.runtime_admin import runtime_builder
from trainer_core.runtime_admin.runtime_builder import InitializerParameters, RuntimeParameters, StorageParameters

DEFAULT_RUNTIMES = ["python", "torch-distributed"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command in this process; return exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TRAINJOB_BACKEND", raising=False)

    def command(*arguments):
        code = main(["runtimes", *arguments])
        return code, *capsys.readouterr()

    return command


@pytest.fixture(scope="module")
def shared():
    with Cluster(namespaces=["team"], controllers=False) as created:
        yield created


@pytest.fixture
def cluster(shared, tmp_path, monkeypatch, run):
    """The cluster of these tests, without the objects of earlier tests."""
    monkeypatch.setenv("KUBECONFIG", str(shared.kubeconfig(tmp_path / "config", "team")))
    monkeypatch.setenv("TRAINJOB_BACKEND", "kubernetes")
    yield shared
    for kind in (TRAINJOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
        for metadata in [
            raw["metadata"] for raw in shared.objects(kind) if raw["metadata"]["name"] not in DEFAULT_RUNTIMES
        ]:
            shared.delete(kind, metadata["name"], metadata.get("namespace"))


def torch(name="mine", **settings):
    return runtime_builder.build_torch_runtime(RuntimeParameters(name, **settings))


def torch_with_dataset(size):
    return runtime_builder.add_initializers(
        torch(), dataset=InitializerParameters(), storage=StorageParameters(size=size)
    )


@pytest.fixture
def write_yaml(tmp_path):
    def write(*manifests):
        path = tmp_path / "runtimes.yaml"
        path.write_text(yaml.safe_dump_all(manifests), encoding="utf-8")
        return str(path)

    return write


def test_without_a_subcommand_runtimes_are_listed(run):
    code, out, _ = run("-o", "json")

    assert (code, [runtime["name"] for runtime in json.loads(out)]) == (0, [*DEFAULT_RUNTIMES, "trl-llm"])
    assert run() == run("list")


def test_a_name_is_short_for_get(run):
    code, out, _ = run("python", "-o", "json")

    assert code == 0
    assert {"name", "kind", "framework", "image", "num_nodes", "device", "command", "packages"} == set(json.loads(out))
    assert run("get", "python") == run("python")


def test_the_error_of_an_unknown_runtime_lists_the_known_ones(run):
    code, _, err = run("lst")

    assert code == 3
    assert "runtime 'lst' does not exist" in err
    assert "torch-distributed" in err


@pytest.mark.parametrize(
    "arguments", [("apply", "a.yaml"), ("diff", "a.yaml"), ("delete", "a"), ("create", "torch", "a")]
)
def test_management_commands_need_a_cluster(run, write_yaml, arguments):
    write_yaml(torch())
    code, _, err = run(*arguments)

    assert code == 2
    assert "trainjob --backend kubernetes runtimes" in err


def test_a_local_runtime_has_no_manifest(run):
    assert run("get", "python", "-o", "yaml")[0] == 2


def without_nodes(name):
    runtime = torch(name)
    runtime["spec"]["mlPolicy"]["numNodes"] = 0
    return runtime


def test_validate_prints_errors_without_a_cluster(run, write_yaml):
    code, out, _ = run("validate", write_yaml(torch(), without_nodes("broken")))

    assert code == 2
    assert [line[:40] for line in out.splitlines()] == ["mine: ok", "broken: error V3 spec.mlPolicy.numNodes:"]


def test_validate_exits_with_0_for_warnings(run, write_yaml):
    labelled = torch(labels={"trainer.kubeflow.org/webhook-validation": "disabled"})
    code, out, _ = run("validate", write_yaml(labelled), "-o", "json")

    assert code == 0
    assert [(found["name"], found["findings"][0]["severity"]) for found in json.loads(out)] == [("mine", "warning")]


@pytest.mark.parametrize("text", ["", "---\n---\n", "a: [", "%"])
def test_a_file_without_runtimes_is_rejected_in_one_line(run, tmp_path, text):
    (tmp_path / "file.yaml").write_text(text)
    code, _, err = run("validate", "file.yaml")

    assert (code, len(err.splitlines())) == (2, 1)
    assert "file.yaml" in err


def test_a_document_that_is_not_a_mapping_is_an_error(run, tmp_path):
    (tmp_path / "file.yaml").write_text("- a\n- b\n")

    assert run("validate", "file.yaml")[:2] == (2, "?: error shape runtime: must be a mapping, got list\n")


def test_create_prints_a_manifest_in_a_dry_run(run):
    code, out, _ = run("create", "torch", "mine", "--dry-run")

    assert (code, yaml.safe_load(out)) == (0, torch())


def test_create_has_options_for_the_fields_of_a_runtime(run):
    where = ("--node-selector", "pool=gpu", "--toleration", "gpu=yes:NoSchedule", "--service-account", "trainer")
    what = ("--image", "i:1", "--nodes", "2", "-r", "gpu=2", "-e", "A=1", "--command", "python3", "--command", "a.py")
    steps = ("--dataset", "hf://a/b", "--model", "s3://b/m", "--claim", "data")
    rest = ("--namespace", "team", "-l", "team=a", "--gang", "volcano", "--queue", "q", "--dry-run", "-o", "json")
    runtime = json.loads(run("create", "torch", "mine", *where, *what, *steps, *rest)[1])

    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = jobs[2]["template"]["spec"]["template"]["spec"]
    assert [job["name"] for job in jobs] == ["dataset-initializer", "model-initializer", "node"]
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
    assert pod["volumes"] == [{"name": "initializer", "persistentVolumeClaim": {"claimName": "data"}}]
    assert pod["containers"][0]["command"] == ["python3", "a.py"]
    assert runtime["metadata"]["namespace"] == "team"


def test_create_builds_a_torchtune_runtime(run):
    code, out, _ = run("create", "torchtune", "torchtune-llama3.2-1b", "-r", "gpu=2", "--dry-run")

    assert (code, yaml.safe_load(out)["metadata"]["labels"]) == (0, {"trainer.kubeflow.org/framework": "torchtune"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plain", "a"), "image is missing"),
        (("torch", "A"), "runtime name 'A'"),
        (("torch", "a", "-r", "gpu"), "--resource must be name=value"),
        (("torch", "a", "--queue", "q"), "--queue needs --gang volcano"),
        (("torch", "a", "-e", "PET_NNODES=2"), "violates rule V13"),
        (("spark", "a"), "spark"),
    ],
)
def test_an_error_of_create_is_one_line(run, arguments, message):
    code, _, err = run("create", *arguments, "--dry-run")

    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err


def test_a_runtime_is_created_and_shown(run, cluster):
    assert run("create", "torch", "mine", "-r", "gpu=2")[:2] == (0, "ClusterTrainingRuntime mine created\n")
    assert yaml.safe_load(run("get", "mine", "-o", "yaml")[1])["kind"] == "ClusterTrainingRuntime"
    assert json.loads(run("mine", "-o", "json")[1])["device_count"] == "2"
    assert run("create", "torch", "mine")[0] == 4


def test_a_cluster_lists_scope_device_and_initializers(run, cluster):
    cluster.add(
        runtime_builder.add_initializers(torch(resources={"gpu": 2}, namespace="team"), dataset=InitializerParameters())
    )
    lines = run()[1].splitlines()

    assert lines[0].split() == [*("NAME", "NAMESPACE", "FRAMEWORK", "POLICY", "NODES", "DEVICE"), *lines[0].split()[6:]]
    assert lines[1].split()[:8] == ["mine", "team", "torch", "torch", "1", "2", "gpu", "dataset"]
    assert [found["name"] for found in json.loads(run("list", "-o", "json")[1])] == ["mine", *DEFAULT_RUNTIMES]


def test_get_prints_the_problems_of_a_runtime(run, cluster):
    cluster.add(torch(labels={"trainer.kubeflow.org/webhook-validation": "disabled"}))

    assert "warning labels metadata.labels: webhook-validation=disabled" in run("get", "mine")[1]


def test_several_documents_are_applied_in_order(run, cluster, write_yaml):
    file = write_yaml(torch("a"), torch("b", namespace="team"))

    assert run("apply", file)[:2] == (0, "ClusterTrainingRuntime a created\nTrainingRuntime b created\n")
    assert [done["action"] for done in json.loads(run("apply", file, "-o", "json")[1])] == ["unchanged", "unchanged"]


def test_an_invalid_document_prevents_all_changes(run, cluster, write_yaml):
    code, out, err = run("apply", write_yaml(torch("a"), without_nodes("b")))

    assert (code, out) == (2, "")
    assert "b: error V3" in err
    assert [found["name"] for found in json.loads(run("-o", "json")[1])] == DEFAULT_RUNTIMES


def test_diff_prints_each_change_and_exits_with_1(run, cluster, write_yaml):
    run("apply", write_yaml(torch(image="i:1")))

    assert run("diff", write_yaml(torch(image="i:1")))[:2] == (0, "mine: unchanged\n")
    code, out, _ = run("diff", write_yaml(torch(image="i:2"), torch("new")))
    assert code == 1
    assert out.splitlines() == [
        "mine: spec.template.spec.replicatedJobs[node].template.spec.template.spec.containers[node].image: i:1 -> i:2",
        "new: would be created",
    ]


def test_a_change_of_an_immutable_field_needs_recreate(run, cluster, write_yaml):
    run("apply", write_yaml(torch_with_dataset("20Gi")))

    assert "(needs --recreate)" in run("diff", write_yaml(torch_with_dataset("50Gi")))[1]
    assert run("apply", write_yaml(torch_with_dataset("50Gi")))[0] == 4
    assert run("apply", write_yaml(torch_with_dataset("50Gi")), "--recreate")[:2] == (
        0,
        "ClusterTrainingRuntime mine recreated\n",
    )


def test_a_dry_run_validates_on_the_server_and_changes_nothing(run, cluster, write_yaml):
    assert run("apply", write_yaml(torch()), "--dry-run")[:2] == (0, "ClusterTrainingRuntime mine accepted\n")
    assert run("validate", write_yaml(torch()), "--server")[0] == 0
    assert run("get", "mine")[0] == 3


def test_a_runtime_in_use_is_deleted_only_with_force(run, cluster):
    run("create", "torch", "mine")
    job = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "job"}}
    cluster.add({**job, "spec": {"runtimeRef": {"name": "mine"}}})
    code, _, err = run("delete", "mine")

    assert code == 4
    assert "used by default/job" in err
    assert run("delete", "mine", "--scope", "cluster", "--force")[0] == 0
    assert run("delete", "mine")[0] == 3
