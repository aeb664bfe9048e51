"""Runtimes of older versions of Trainer: rule V3 follows the cluster or --trainer-version; upgrade converts."""

from __future__ import annotations

import copy

import pytest
import yaml
from fake_cluster import Cluster

from trainer_core.cli import main
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES
from trainer_core.model.config import KubernetesBackendConfig
from trainer_core.runtime_admin import ml_policies
from trainer_core.runtime_admin.apply import RuntimeAdmin
from trainer_core.runtime_admin.ml_policies import upgrade_runtime

FRAMEWORK = "trainer.kubeflow.org/framework"
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
#: As in the Runtime Guide of Kubeflow Trainer.
GUIDE = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "guide"},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {"labels": {STEP: "trainer"}},
                            "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "pytorch:2"}]}}},
                        },
                    }
                ]
            }
        },
    },
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command with the guide's runtime in ``guide.yaml``; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRAINJOB_BACKEND", raising=False)
    (tmp_path / "guide.yaml").write_text(yaml.safe_dump(GUIDE))

    def command(*arguments):
        code = main([*arguments])
        return code, *capsys.readouterr()

    return command


def with_torch(**fields):
    runtime = copy.deepcopy(GUIDE)
    runtime["spec"]["mlPolicy"]["torch"] = fields
    return runtime


@pytest.mark.parametrize(("version", "accepted"), [("2.0", True), ("v2.1.0", True), ("2.2", False), ("2.3.0", False)])
def test_the_trainer_version_decides_offline_which_fields_a_policy_has(run, version, accepted):
    code, out, _ = run("runtimes", "validate", "guide.yaml", "--trainer-version", version)
    assert code == (0 if accepted else 2)
    assert ("removed in Trainer 2.2; `trainjob runtimes upgrade FILE`" in out) is not accepted
    assert "warning V14 metadata.labels" in out


def test_a_policy_of_a_newer_trainer_is_unknown_to_an_older_one(run, tmp_path):
    runtime = copy.deepcopy(GUIDE)
    runtime["spec"]["mlPolicy"] = {"numNodes": 1, "jax": {}}
    (tmp_path / "jax.yaml").write_text(yaml.safe_dump(runtime))
    assert run("runtimes", "validate", "jax.yaml")[0] == 0
    code, out, _ = run("runtimes", "validate", "jax.yaml", "--trainer-version", "2.1")
    assert code == 2
    assert "spec.mlPolicy.jax: is an unknown field; known fields: numNodes, torch, mpi" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trainer-version", "1.9"), "Trainer version '1.9' is unknown; the known versions are 2.0, 2.1, 2.2, 2.3"),
        (("--trainer-version", "2.1", "--server"), "--trainer-version and --server cannot be used together"),
    ],
)
def test_a_wrong_trainer_version_is_bad_input(run, arguments, message):
    code, out, err = run("runtimes", "validate", "guide.yaml", *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(("version", "accepted"), [("2.1", True), ("2.3", False)])
def test_apply_asks_the_cluster_which_fields_a_policy_has(run, tmp_path, monkeypatch, version, accepted):
    with Cluster(namespaces=["team"], controllers=False, trainer=version) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "config", "team")))
        code, out, err = run("--backend", "kubernetes", "runtimes", "apply", "guide.yaml")
        names = [raw["metadata"]["name"] for raw in cluster.objects(CLUSTER_TRAINING_RUNTIMES)]
        assert (code, "guide" in names) == ((0, True) if accepted else (2, False))
        assert ("guide created" in out) is accepted
        assert ("nothing was applied" in err) is not accepted
        assert run("--backend", "kubernetes", "runtimes", "validate", "guide.yaml", "--server")[0] == code


@pytest.mark.parametrize("version", list(ml_policies.VERSIONS))
def test_the_table_of_versions_equals_what_each_version_serves(tmp_path, version):
    with Cluster(controllers=False, trainer=version) as cluster:
        config = KubernetesBackendConfig(config_file=str(cluster.kubeconfig(tmp_path / "config")))
        served = RuntimeAdmin(config).ml_policy_fields
    table = ml_policies.get_fields(version)
    assert {name: set(fields) for name, fields in served.items()} == {name: set(table[name]) for name in table}


def test_upgrade_prints_a_valid_runtime_and_what_moved_where(run, tmp_path):
    code, out, err = run("runtimes", "upgrade", "guide.yaml")
    assert (code, err) == (0, "")
    first, second = out.splitlines()[:2]
    assert first.startswith("# spec.mlPolicy.torch.numProcPerNode was removed: 'auto' is what Trainer computes from")
    assert second == f"# metadata.labels: {FRAMEWORK}=torch was added, so that the Kubeflow SDK lists the runtime"
    (tmp_path / "upgraded.yaml").write_text(out)
    assert run("runtimes", "validate", "upgraded.yaml")[:2] == (0, "guide: ok\n")
    again = run("runtimes", "upgrade", "upgraded.yaml")[1]
    assert again == "".join(out.partition("---\n")[1:])


def test_upgrade_says_where_a_number_of_processes_and_elastic_nodes_go():
    elastic = {"minNodes": 2, "maxNodes": 4, "maxRestarts": 3}
    runtime = with_torch(numProcPerNode=4, elasticPolicy=elastic)
    del runtime["spec"]["mlPolicy"]["numNodes"]
    before = copy.deepcopy(runtime)
    upgraded, changes = upgrade_runtime(runtime)
    assert runtime == before
    assert upgraded["spec"]["mlPolicy"] == {"torch": {}, "numNodes": 2}
    assert "set num_proc_per_node=4 in the trainer of each TrainJob" in changes[0]
    assert "minNodes became spec.mlPolicy.numNodes; maxRestarts, maxNodes: Trainer 2.2" in changes[1]


def test_upgrade_keeps_other_errors_and_names_them(run, tmp_path):
    wrong = with_torch(numProcPerNode="auto", nodes=2)
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    code, _, err = run("runtimes", "upgrade", "wrong.yaml")
    assert code == 2
    assert err.startswith("guide: error V3 spec.mlPolicy.torch.nodes: is an unknown field")
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump({**GUIDE, "spec": []}))
    code, out, err = run("runtimes", "upgrade", "wrong.yaml")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
