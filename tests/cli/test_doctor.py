"""`trainjob doctor`: checks, exit codes and the RBAC objects that grant missing permissions."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from fake_cluster import Cluster

from trainer_core.backends.trainer_v2.preflight import PERMISSIONS
from trainer_core.cli import main
from trainer_core.k8s import rbac
from trainer_core.k8s.rbac import AIRFLOW, KFP
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES
from trainer_core.runtime_admin import runtime_builder
from trainer_core.runtime_admin.runtime_builder import RuntimeParameters

ROOT = Path(__file__).parents[2]


@pytest.fixture
def doctor(tmp_path, monkeypatch, capsys):
    """Run the command in this process; return exit code and report."""
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")

    def command(backend="kubernetes", *options):
        code = main(["--backend", backend, "doctor", *options, "-o", "json"])
        return code, Report(json.loads(capsys.readouterr().out))

    return command


class Report(dict):
    """The JSON report of the command."""

    def state(self, what):
        return self.check(what)["state"]

    def check(self, what):
        (found,) = [each for each in self["checks"] if each["what"] == what]
        return found

    @property
    def states(self):
        return {each["state"] for each in self["checks"]}


@pytest.fixture
def start_cluster(tmp_path, monkeypatch):
    """Start a cluster with a release of Trainer, and set KUBECONFIG to it."""
    with ExitStack() as stack:

        def start(trainer="2.3"):
            created = stack.enter_context(Cluster(namespaces=["team"], controllers=False, trainer=trainer))
            monkeypatch.setenv("KUBECONFIG", str(created.kubeconfig(tmp_path / "config", "team")))
            return created

        yield start


@pytest.fixture
def cluster(start_cluster):
    return start_cluster()


def test_a_complete_cluster_passes_all_checks_and_the_runtime_whose_nodes_restart_alone_is_named(doctor, cluster):
    code, report = doctor()

    assert (code, report["fit"], report["repair"]) == (0, True, [])
    (limited,) = [check for check in report["checks"] if check["state"] != "ok"]
    assert (limited["what"], limited["state"]) == ("runtime torch-distributed", "limited")
    assert limited["cost"].startswith("with several nodes, a node that fails or is evicted restarts alone")
    assert "namespace team" in report.check("configuration")["found"]
    assert "Kubernetes v1." in report.check("server")["found"]
    assert report.check("trainer")["found"] == "Trainer 2.3 or later, overrides runtimes with runtimePatches"
    assert report.check("kueue")["found"].startswith("not installed")


def test_doctor_creates_and_changes_nothing(doctor, cluster):
    before = cluster.objects(CLUSTER_TRAINING_RUNTIMES)
    doctor()
    written = [request for request in cluster.requests if request.method != "GET"]

    assert cluster.objects(CLUSTER_TRAINING_RUNTIMES) == before
    assert {request.path.rsplit("/", 1)[1] for request in written} <= {
        "selfsubjectaccessreviews",
        "selfsubjectreviews",
    }


def test_the_version_in_trainers_config_map_is_printed(doctor, cluster):
    facts = {"name": "kubeflow-trainer-public", "namespace": "kubeflow-system"}
    data = {"kubeflow_trainer_version": "v2.3.0"}
    cluster.add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": facts, "data": data})

    assert doctor()[1].check("trainer")["found"].startswith("Trainer v2.3.0,")


@pytest.mark.parametrize(("version", "field"), [("2.0", "podSpecOverrides"), ("2.1", "podTemplateOverrides")])
def test_an_older_trainer_is_detected_by_its_override_field(doctor, start_cluster, version, field):
    start_cluster(version)
    code, report = doctor()

    assert (code, report.state("trainer")) == (0, "limited")
    assert report.check("trainer")["found"] == f"Trainer {version}, overrides runtimes with {field}"


def test_a_cluster_without_trainer_is_not_fit(doctor, cluster):
    cluster.delete("customresourcedefinitions", "trainjobs.trainer.kubeflow.org", None)
    code, report = doctor()

    assert (code, report.state("trainer")) == (6, "missing")


def test_kueue_is_detected(doctor, cluster):
    names = {"plural": "localqueues", "kind": "LocalQueue"}
    version = {"name": "v1beta1", "served": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    spec = {"group": "kueue.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    cluster.add({**head, "metadata": {"name": "localqueues.kueue.x-k8s.io"}, "spec": spec})

    assert doctor()[1].check("kueue")["found"] == "kueue.x-k8s.io/v1beta1"


def test_a_namespace_that_does_not_exist_is_missing(doctor, cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "other", "nowhere")))
    code, report = doctor()

    assert (code, report.state("namespace")) == (6, "missing")


def test_a_namespace_that_may_not_be_read_is_unknown(doctor, cluster):
    cluster.forbid("get", "namespaces")
    code, report = doctor()

    assert (code, report.state("namespace")) == (0, "unknown")


def test_a_runtime_with_problems_is_limited_and_lists_them(doctor, cluster):
    cluster.add(
        runtime_builder.build_torch_runtime(
            RuntimeParameters("a", labels={"trainer.kubeflow.org/webhook-validation": "disabled"})
        )
    )
    cluster.add(
        runtime_builder.build_torch_runtime(RuntimeParameters("b", resources={"gpu": 2}, num_nodes=3, image="i:1"))
    )
    report = doctor()[1]

    assert "labels" in report.check("runtime a")["cost"]
    assert report.check("runtime b")["found"] == "torch, 3 nodes, 2 gpu, i:1"


def test_a_cluster_without_runtimes_is_not_fit(doctor, cluster):
    for runtime in ("python", "torch-distributed"):
        cluster.delete(CLUSTER_TRAINING_RUNTIMES, runtime, None)
    code, report = doctor()

    assert (code, report.state("runtimes")) == (6, "missing")


def test_a_missing_optional_permission_is_limited(doctor, cluster):
    cluster.forbid("get", "pods/log")
    code, report = doctor()

    assert (code, report.check("may get pods/log")["state"]) == (0, "limited")
    assert report.check("may get pods/log")["cost"].startswith("no logs")


def test_a_missing_required_permission_exits_with_6(doctor, cluster):
    cluster.forbid("create", "trainjobs")
    code, report = doctor()

    assert (code, report.state("may create trainjobs")) == (6, "missing")


def test_the_rbac_objects_grant_only_missing_permissions(doctor, cluster):
    cluster.forbid("patch", "trainjobs")
    cluster.forbid("*", "pods")
    cluster.forbid("get", "clustertrainingruntimes")
    role, binding, shared, shared_binding = doctor()[1]["repair"]

    assert role["metadata"] == {"name": "trainjob-user", "namespace": "team"}
    assert role["rules"] == [
        {"apiGroups": ["trainer.kubeflow.org"], "resources": ["trainjobs"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ]
    assert (binding["kind"], binding["roleRef"]["name"]) == ("RoleBinding", "trainjob-user")
    assert (shared["kind"], shared["rules"][0]["verbs"]) == ("ClusterRole", ["get"])
    assert shared_binding["kind"] == "ClusterRoleBinding"


def test_the_rbac_objects_are_printed_as_yaml_after_the_table(cluster, capsys):
    cluster.forbid("list", "events")
    main(["--backend", "kubernetes", "doctor"])
    table, repair = capsys.readouterr().out.split("\n# RBAC", 1)

    assert "no reason why a pod is not scheduled" in table
    assert "waits for an autoscaler or a queue are limited by scheduling_grace" in table
    assert [each["kind"] for each in yaml.safe_load_all(f"# {repair}")] == ["Role", "RoleBinding"]


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("system:serviceaccount:airflow:worker", {"kind": "ServiceAccount", "name": "worker", "namespace": "airflow"}),
        ("anna@example.com", {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "anna@example.com"}),
        (None, {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "FILL-IN-YOUR-USER"}),
    ],
)
def test_the_rbac_objects_are_bound_to_the_current_user(user, subject):
    _, binding = rbac.build_rbac_objects(PERMISSIONS[:1], user, "team")

    assert binding["subjects"] == [subject]


def test_an_expired_token_is_reported(doctor, cluster):
    cluster.tokens = {"another"}
    code, report = doctor()

    assert (code, report.state("credentials")) == (6, "missing")
    assert "log in" in report.check("credentials")["found"]


def test_a_missing_kubeconfig_is_reported(doctor, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    code, report = doctor()

    assert (code, [each["what"] for each in report["checks"]]) == (6, ["configuration"])


def test_a_server_without_tls_is_reported_as_a_tls_problem(doctor, cluster, tmp_path, monkeypatch):
    config = yaml.safe_load(cluster.kubeconfig(tmp_path / "tls").read_text())
    config["clusters"][0]["cluster"]["server"] = cluster.url.replace("http://", "https://")
    (tmp_path / "tls").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "tls"))
    code, report = doctor()

    assert (code, report.state("TLS")) == (6, "missing")


def test_an_unreachable_server_is_not_reported_as_a_tls_problem(doctor, cluster, tmp_path, monkeypatch):
    config = yaml.safe_load(cluster.kubeconfig(tmp_path / "gone").read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "gone").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    code, report = doctor()

    assert (code, report.state("server")) == (6, "missing")
    assert "cannot be reached" in report.check("server")["found"]


def test_the_local_backend_passes(doctor):
    code, report = doctor("local")

    assert (code, [each["what"] for each in report["checks"]]) == (0, ["python", "torch", "home", "checkpoints"])
    assert report.check("python")["found"] == ".".join(map(str, sys.version_info[:3]))


def test_a_home_folder_without_write_permission_is_missing(doctor, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "file" / "home"))
    code, report = doctor("local")

    assert (code, report.state("home")) == (6, "missing")


def test_a_folder_of_checkpoints_that_cannot_be_written_is_limited(doctor, tmp_path):
    (tmp_path / "file").touch()
    code, report = doctor("local", "--checkpoints", (tmp_path / "file" / "checkpoints").as_uri())

    assert (code, report.state("checkpoints")) == (0, "limited")
    assert "cannot be written: Not a directory" in report.check("checkpoints")["found"]


@pytest.mark.parametrize(
    ("modes", "state", "found"),
    [
        (None, "limited", "claim 'ckpt' does not exist"),
        (["ReadWriteOnce"], "limited", "claim 'ckpt', ReadWriteOnce"),
        (["ReadWriteMany", "ReadWriteOnce"], "ok", "claim 'ckpt', ReadWriteMany, ReadWriteOnce"),
    ],
)
def test_the_claim_of_checkpoints_is_checked(doctor, cluster, modes, state, found):
    if modes:
        metadata = {"name": "ckpt", "namespace": "team"}
        spec = {"accessModes": modes, "resources": {"requests": {"storage": "1Gi"}}}
        cluster.add({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    code, report = doctor("kubernetes", "--checkpoints", "pvc://ckpt/runs")

    assert (code, report.state("checkpoints"), report.check("checkpoints")["found"]) == (0, state, found)


def test_a_place_of_checkpoints_that_the_backend_does_not_have_is_refused(capsys):
    assert main(["doctor", "--checkpoints", "pvc://claim"]) == 2
    assert "use file:// or s3://" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("http://127.0.0.1:9", "MLflow server http://127.0.0.1:9 cannot be reached"),
        ("sqlite:///runs.db", "is not the http(s) address"),
        ("http://ada:s3cr3t@mlflow", "contains a user or password"),
    ],
)
def test_a_tracking_server_that_does_not_answer_is_limited(doctor, monkeypatch, uri, found):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    code, report = doctor("local")

    assert (code, report.state("tracking")) == (0, "limited")
    assert found in report.check("tracking")["found"]
    assert "s3cr3t" not in json.dumps(report)


def test_doctor_leaves_no_files(doctor, tmp_path):
    doctor("local")

    assert list(tmp_path.iterdir()) == []


def test_an_unknown_backend_is_rejected(capsys):
    assert main(["--backend", "moon", "doctor"]) == 2
    assert "known are" in capsys.readouterr().err


# deploy/rbac.yaml


@pytest.fixture(scope="module")
def deployed():
    documents = yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text(encoding="utf-8"))
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


@pytest.mark.parametrize(("role", "user"), [("trainjob-airflow-worker", AIRFLOW), ("trainjob-kfp-runner", KFP)])
def test_a_deployed_role_grants_exactly_the_needed_permissions(deployed, role, user):
    needed = [each for each in PERMISSIONS if user in each.users and each.api_resource.namespaced]

    assert deployed["ClusterRole", role]["rules"] == rbac.build_rules(needed)


def test_the_deployed_cluster_role_grants_exactly_the_needed_permissions(deployed):
    needed = [each for each in PERMISSIONS if not each.api_resource.namespaced]

    assert deployed["ClusterRole", "trainjob-runtimes"]["rules"] == rbac.build_rules(needed)


def test_every_deployed_binding_has_a_deployed_role(deployed):
    bindings = [each for (kind, _), each in deployed.items() if kind.endswith("Binding")]

    assert len(bindings) == 3
    assert {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} <= deployed.keys()


def test_deployed_role_bindings_name_no_namespace(deployed):
    bindings = [each for (kind, _), each in deployed.items() if kind == "RoleBinding"]

    assert bindings
    assert not any("namespace" in each["metadata"] for each in bindings)


def test_no_permission_is_a_wildcard_or_reads_secrets():
    granted = {(verb, each.resource_name) for each in PERMISSIONS for verb in each.verbs}

    assert not any("*" in pair for pair in granted)
    assert {verb for verb, resource in granted if resource == "secrets"} == {"create"}
