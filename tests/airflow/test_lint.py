"""`trainjob lint` with DAG files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap

import airflow.sdk
import pytest
from fake_cluster import Cluster

from trainer_core.cli import main

HEAD = """
from datetime import datetime, timezone
from airflow.sdk import DAG, Param, task
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import CustomTrainer

def train(lr: float, day: str = ""):
    return {"lr": lr}

@task.trainjob(runtime="python")
def fit(x: int):
    return x

@task
def upstream():
    return 3

PARAMS = {"nodes": 2, "asked": Param(type="integer")}
with DAG("nightly", schedule=None, start_date=datetime(2024, 1, 1, tzinfo=timezone.utc), params=PARAMS):
"""


@pytest.fixture
def lint(tmp_path, monkeypatch, capsys, airflow_db):
    """Lint a file with these tasks, in this process; return the exit code and the problems."""
    monkeypatch.chdir(tmp_path)

    def command(tasks, *arguments):
        folder = tmp_path / "dags"
        folder.mkdir(exist_ok=True)
        (folder / "nightly.py").write_text(HEAD + textwrap.indent(textwrap.dedent(tasks), "    "))
        capsys.readouterr()
        code = main(["lint", "dags", "-o", "json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    return command


def operator(arguments):
    return f"TrainJobOperator(task_id='train', {arguments})"


@pytest.mark.parametrize(
    "tasks",
    [
        operator("trainer=CustomTrainer(train, {'lr': '{{ params.nodes }}', 'day': '{{ ds }}'})"),
        operator("trainer=CustomTrainer(train, {'lr': 1}, num_nodes='{{ params.nodes }}')"),
        operator("trainer=CustomTrainer(train, {'lr': '{{ params.asked }}'}, num_nodes='{{ var.value.nodes }}')"),
        operator("trainer={'image': '{{ ti.x }}', 'resources_per_node': {'gpu': '{{ ti.gpus }}'}}"),
        operator("initializer={'dataset': '{{ conn.data.host }}'}"),
        operator("trainer=CustomTrainer(train), func_args={'lr': upstream()}"),
        "fit(upstream())",
        "fit.expand(x=[1, 2])",
        "fit.expand(x=upstream())",
        "fit.expand_kwargs([{'x': 1}])",
        "TrainJobOperator.partial(task_id='s', trainer=CustomTrainer(train)).expand(func_args=upstream())",
        "upstream()",
    ],
)
def test_values_unknown_before_the_run_are_no_problem(lint, tasks):
    assert lint(tasks) == (0, [])


@pytest.mark.parametrize(
    ("tasks", "task", "problem"),
    [
        (
            operator("trainer=CustomTrainer(train, {'lr': 1}, num_nodes='{{ params.nodes - 2 }}')"),
            "train",
            "trainer.num_nodes: Input should be greater than 0, got '0'",
        ),
        (
            operator("trainer=CustomTrainer(train, {'lr': '{{ ds }}'}, num_nodes='{{ ti.x }}')"),
            "train",
            "is not a float (train(lr: float))",
        ),
        (
            operator("trainer=CustomTrainer(train, {'lr': 1}, env={'A': '{{ ds }'})"),
            "train",
            "trainer.env.A: the template has a syntax error: unexpected '}'",
        ),
        (operator("initializer={'dataset': '{{ ds }}'}"), "train", "initializer.dataset.storage_uri"),
        ("fit('two')", "fit", "func_args.x: 'two' is not an int (fit(x: int))"),
    ],
)
def test_a_problem_is_one_line_with_file_dag_and_task(lint, tasks, task, problem):
    code, (found,) = lint(tasks)
    assert code == 2
    assert {key: found[key] for key in ("file", "dag", "task")} == {
        "file": "dags/nightly.py",
        "dag": "nightly",
        "task": task,
    }
    assert problem in found["problem"]
    assert "\n" not in found["problem"]


@pytest.mark.parametrize(
    ("tasks", "entry", "problem"),
    [
        ("fit.expand(x=[1, 'two'])", "1", "'two' is not an int"),
        ("fit.override(num_nodes=0).expand(x=[1])", "0", "num_nodes must be a whole number"),
        (
            "TrainJobOperator.partial(task_id='s', trainer=CustomTrainer(train)).expand(func_args=[{'lr': 1}, {}])",
            "1",
            "train requires lr",
        ),
        (
            "TrainJobOperator.partial(task_id='s').expand_kwargs([{'trainer': {'image': 'a', 'num_nodes': 'x'}}])",
            "0",
            "trainer.num_nodes",
        ),
    ],
)
def test_each_entry_of_a_mapped_task_is_checked(lint, tasks, entry, problem):
    code, (found,) = lint(tasks)
    assert (code, found["entry"]) == (2, entry)
    assert problem in found["problem"]


def test_a_source_that_the_named_backend_cannot_read_is_a_problem(lint):
    code, (found,) = lint(operator("backend='local', initializer={'dataset': 'pvc://claim/data'}"))
    assert code == 2
    assert "initializer.dataset: pvc:// is not supported by LocalProcessBackend" in found["problem"]


def test_an_import_error_is_a_problem_with_its_line(lint):
    code, (found,) = lint(operator("trainer={'image': 'a', 'num_nodes': -1}"))
    assert code == 2
    assert found == {
        "file": f"dags/nightly.py:{HEAD.count(chr(10)) + 1}",
        "dag": "nightly",
        "task": "train",
        "problem": "num_nodes must be a whole number of at least 1, got -1",
    }


def test_a_mistyped_argument_is_named_with_its_operator(lint):
    code, (found,) = lint(operator("trainer={'image': 'a'}, runtme='python'"))
    assert code == 2
    assert found["problem"].startswith("Invalid arguments were passed to TrainJobOperator (task_id: train)")
    assert "runtme" in found["problem"]


def test_output_of_dag_files_is_not_mixed_with_the_problems(lint):
    assert lint("print('noise')") == (0, [])


@pytest.fixture(scope="module")
def cluster():
    with Cluster(namespaces=["team"], controllers=False) as made:
        yield made


def on_cluster(config, arguments):
    return operator(
        f"trainer=CustomTrainer(train, {{'lr': 1}}), backend='kubernetes', backend_config={config!r}, {arguments}"
    )


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [("runtime='python'", 0), ("runtime='absent'", 1), ("runtime='python', secrets=None", 0)],
)
def test_the_server_check_creates_nothing(lint, cluster, tmp_path, arguments, problems):
    config = {"config_file": str(cluster.kubeconfig(tmp_path / "config", "team"))}
    _, found = lint(on_cluster(config, arguments), "--server")
    assert len(found) == problems
    assert cluster.objects("TrainJob", "team") == []


def test_a_refusal_by_the_server_is_a_problem(lint, cluster, tmp_path):
    config = {"config_file": str(cluster.kubeconfig(tmp_path / "config", "team"))}
    cluster.faults.next(status=422, method="POST", path="trainjobs")
    code, (found,) = lint(on_cluster(config, "runtime='python'"), "--server")
    assert (code, found["task"]) == (2, "train")


def test_a_missing_connection_is_a_problem_of_the_server_check(lint):
    tasks = operator("trainer=CustomTrainer(train, {'lr': 1}), trainjob_conn_id='absent'")
    assert lint(tasks) == (0, [])
    code, (found,) = lint(tasks, "--server")
    assert code == 2
    assert "absent" in found["problem"]


def test_a_name_that_no_run_has_is_a_problem(lint):
    arguments = (
        "{'lr': '{{ parms.e }}', 'day': '{{ parms.day }} {% set x = 1 %}{{ x }} {{ range(2) }} {{ var.value.a }}'}"
    )
    code, (found,) = lint(operator(f"trainer=CustomTrainer(train, {arguments})"))
    assert code == 2
    assert found["problem"].count("parms is undefined; did you mean params?") == 2


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ ds }}", "ds"),
        ("{{ macros.ds_add(logical_date | ds, -1) }}", "logical_date"),
        ("{{ ti.task_id }} {{ ts }}", "ts"),
        ("{{ ds | default('') }}", None),
        ("{% if ds is defined %}{{ ds }}{% endif %}", None),
        ("{{ dag_run.run_after | ds }}", None),
    ],
)
def test_a_name_that_some_runs_do_not_have_is_a_warning(lint, monkeypatch, template, name):
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    assert lint(operator(f"trainer=CustomTrainer(train, {{'lr': 1, 'day': {template!r}}})")) == (0, [])
    warnings = [line for line in errors.getvalue().splitlines() if "warning" in line]
    assert len(warnings) == (name is not None)
    assert all(
        f"trainer.code.args.day: {name} is undefined in a run without a logical date" in each for each in warnings
    )


@pytest.mark.parametrize(
    ("pull", "is_wrong"),
    [
        ("ti.xcom_pull('train')", True),
        ('ti.xcom_pull(task_ids=["train"])[0]', True),
        ("ti.xcom_pull('train', key='ref')", False),
        ("ti.xcom_pull('upstream')", False),
    ],
)
def test_a_template_of_a_result_is_no_job(lint, pull, is_wrong):
    tasks = ["from airflow_provider.operators.manage import DeleteTrainJobOperator", "upstream()"]
    tasks += [operator("trainer=CustomTrainer(train, {'lr': 1})")]
    tasks += [f"DeleteTrainJobOperator(task_id='delete', job={'{{ ' + pull + ' }}'!r})"]
    found = [each["problem"].partition(" returned")[0] for each in lint("\n".join(tasks))[1]]
    assert found == ["job: the template is what task 'train'"] * is_wrong


ZONES = """
from airflow.sdk import CronTriggerTimetable
import pendulum

BERLIN = pendulum.datetime(2024, 1, 1, tz="Europe/Berlin")
with DAG("zone", schedule=SCHEDULE, start_date=START):
    TrainJobOperator(task_id="fit", trainer=CustomTrainer(train, {"lr": 1, "day": "{{ TEMPLATE }}"}))
"""


@pytest.mark.parametrize(
    ("template", "schedule", "start", "zone"),
    [
        ("dag_run.run_after | ds", "'30 0 * * *'", "BERLIN", "Europe/Berlin"),
        ("macros.ds_add(dag_run.run_after|ds_nodash, -1)", "'30 0 * * *'", "BERLIN", "Europe/Berlin"),
        ("dag_run.run_after.strftime('%d')", "None", "BERLIN", "Europe/Berlin"),
        ("dag_run.run_after | ds", "CronTriggerTimetable('30 0 * * *', timezone='Asia/Tokyo')", "START", "Asia/Tokyo"),
        (
            "dag_run.run_after.astimezone(dag.timezone) | ds",
            "CronTriggerTimetable('30 0 * * *', timezone='Asia/Tokyo')",
            "START",
            "Asia/Tokyo",
        ),
        ("dag_run.run_after.astimezone(dag.timezone) | ds", "'30 0 * * *'", "BERLIN", None),
        ("dag_run.run_after.isoformat()", "'30 0 * * *'", "BERLIN", None),
        ("dag_run.run_after | ds", "'30 0 * * *'", "START", None),
    ],
)
def test_a_date_of_the_run_that_is_not_in_the_time_zone_of_the_dag_is_a_warning(
    lint, monkeypatch, tmp_path, template, schedule, start, zone
):
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    (tmp_path / "dags").mkdir()
    text = ZONES.replace("=START", f"={start}").replace("SCHEDULE", schedule).replace("TEMPLATE", template)
    constants = "START = datetime(2024, 1, 1, tzinfo=timezone.utc)\n"
    (tmp_path / "dags" / "zones.py").write_text(HEAD.rpartition("with DAG")[0] + constants + text)
    assert lint("upstream()") == (0, [])
    warnings = [line.partition("args.day: ")[2] for line in errors.getvalue().splitlines() if "warning" in line]
    assert [f"not in the time zone of the DAG, {zone};" in each for each in warnings] == [True] * (zone is not None)


PARTITIONED = """
from airflow.sdk import Asset, CronPartitionTimetable, PartitionedAssetTimetable, PartitionedAtRuntime

DAY, REGION, PLAIN = Asset("day"), Asset("region"), Asset("plain")
START = datetime(2024, 1, 1, tzinfo=timezone.utc)
with DAG("daily", schedule=CronPartitionTimetable("0 1 * * *", timezone="UTC"), start_date=START):
    TrainJobOperator(task_id="fit", trainer=CustomTrainer(train, {"lr": 1, "day": "{{ ds }}"}), outlets=[DAY])
with DAG("regions", schedule=PLAIN, start_date=START):
    each = TrainJobOperator.partial(task_id="fit", trainer=CustomTrainer(train, {"lr": 1}), outlets=[REGION])
    each.expand(partition=["emea"])
with DAG("unkeyed", schedule=None, start_date=START):
    TrainJobOperator(task_id="fit", trainer=CustomTrainer(train, {"lr": 1}), outlets=[PLAIN])
with DAG("ordinary", schedule=(REGION & PLAIN) | DAY, start_date=START):
    pass
with DAG("keyed", schedule=PartitionedAssetTimetable(assets=DAY & REGION), start_date=START):
    pass
"""


@pytest.mark.skipif(not hasattr(airflow.sdk, "PartitionedAtRuntime"), reason="Airflow before 3.3 has fewer timetables")
def test_what_a_partitioned_dag_never_has_and_never_starts_is_a_warning(lint, monkeypatch, tmp_path):
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "regions.py").write_text(HEAD.rpartition("with DAG")[0] + PARTITIONED)
    assert lint("upstream()") == (0, [])
    ds, *schedules = [line.partition("py: ")[2] for line in errors.getvalue().splitlines() if "warning" in line]
    assert ds == (
        "dag daily, task fit: trainer.code.args.day: ds is undefined in a run with a partition key, as all of this DAG "
        "have; use partition_key"
    )
    assert sorted(each.partition(" have a partition key")[0] for each in schedules) == [
        "dag ordinary: schedule: the events of Asset day from DAG daily",
        "dag ordinary: schedule: the events of Asset region from DAG regions",
    ]


def test_packages_without_an_exact_version_are_a_warning(lint, monkeypatch):
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    exact = ["numpy==2.1.0 ; python_version >= '3.10'", "tool @ https://example.com/tool.whl", "/srv/wheels/x.whl"]
    ranges = ["pandas", "torch>=2.1", "scikit-learn==1.*", "tqdm; python_version=='3.12'"]
    trainer = f"CustomTrainer(train, {{'lr': 1}}, packages_to_install={exact + ranges!r})"
    assert lint(operator(f"trainer={trainer}")) == (0, [])
    (warning,) = [line for line in errors.getvalue().splitlines() if "warning" in line]
    assert "packages_to_install: pandas, torch>=2.1, scikit-learn==1.* and 1 more: no exact version" in warning
    errors.truncate(0)
    assert lint(operator(f"trainer=CustomTrainer(train, {{'lr': 1}}, packages_to_install={exact!r})")) == (0, [])
    assert "warning" not in errors.getvalue()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "pyproject.toml",
            "[project]\ndependencies = ['tools']\n[tool.uv.sources]\ntools = { index = 'team' }\n",
            "packages_to_install: pyproject.toml: tools in tool.uv.sources says where packages come from",
        ),
        (
            "requirements.txt",
            "--extra-index-url https://team.example.com/simple\ntools\n",
            "packages_to_install: tools has no hash, and pip would take it from any of several indexes",
        ),
        (
            "requirements.txt",
            "-e ../shared",
            "packages_to_install: requirements.txt:1: ../shared is on this machine only",
        ),
    ],
)
def test_packages_whose_source_cannot_travel_are_a_problem(lint, tmp_path, name, text, message):
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / name).write_text(text)
    code, (problem,) = lint(operator(f"trainer=CustomTrainer(train, {{'lr': 1}}, packages_to_install={name!r})"))
    assert code == 2
    assert message in problem["problem"]


def test_a_package_with_its_index_but_no_exact_version_is_a_warning(lint, monkeypatch):
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    packages = ["tools>=1 --index-url=https://team.example.com/simple"]
    assert lint(operator(f"trainer=CustomTrainer(train, {{'lr': 1}}, packages_to_install={packages!r})")) == (0, [])
    assert "packages_to_install: tools>=1: no exact version" in errors.getvalue()


QUEUED = operator("trainer=CustomTrainer(train, {'lr': 1}), options=[{'QueueName': 'nightly'}]")


def test_a_task_that_names_no_backend_is_checked_for_each_connection(lint, monkeypatch):
    for name in ("laptop", "cluster"):
        extra = {"backend": "local" if name == "laptop" else "kubernetes"}
        described = json.dumps({"conn_type": "trainjob", "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", described)
    assert lint(QUEUED) == (0, [])
    assert lint(QUEUED, "--connections", "cluster") == (0, [])
    code, (found, missing) = lint(QUEUED, "--connections", "laptop,cluster,absent")
    assert code == 2
    assert (found["task"], found["connection"]) == ("train", "laptop")
    assert "QueueName option is not compatible with LocalProcessBackend" in found["problem"]
    assert missing["connection"] == "absent"
    named = operator("trainer=CustomTrainer(train, {'lr': 1}), backend='kubernetes', options=[{'QueueName': 'n'}]")
    assert lint(named, "--connections", "laptop") == (0, [])


def test_what_on_backend_sets_is_checked_without_a_connection(lint):
    part = "{'OnBackend': {'backend': 'local', 'resources_per_node': {'cpu': '{{ params.nodes - 3 }}'}}}"
    code, (found,) = lint(operator(f"trainer=CustomTrainer(train, {{'lr': 1}}), options=[{part}]"))
    assert code == 2
    assert "trainer.resources_per_node" in found["problem"]
    unknown = part.replace("params.nodes - 3", "ti.x")
    assert lint(operator(f"trainer=CustomTrainer(train, {{'lr': 1}}), options=[{unknown}]")) == (0, [])


def test_a_missing_path_is_bad_input(capsys):
    assert main(["lint", "/absent"]) == 2
    assert "/absent does not exist" in capsys.readouterr().err


def test_the_command_works_without_an_initialized_airflow(tmp_path):
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "nightly.py").write_text(HEAD + "    print('noise')\n    fit('two')\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from trainer_core.cli import main; sys.exit(main())", "lint", "dags"],
        cwd=tmp_path,
        env={**environment, "AIRFLOW_HOME": str(tmp_path / "airflow")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("dags/nightly.py: dag nightly, task fit: func_args.x: ")
    assert not (tmp_path / "airflow" / "airflow.db").exists()


PATCH = """
    from trainer_core import RuntimePatch
    volumes = [{"name": "scratch", "emptydir": {}}, {"name": "data", "emptyDir": {"sizeLimt": "1Gi"}}]
    pods = {"spec": {"template": {"spec": {"volumes": volumes}}}}
    patch = {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": pods}]}}}
    patches = {"RuntimePatch": patch}
    TrainJobOperator(task_id="train", runtime="python", trainer=CustomTrainer(train, {"lr": 1.0}), options=[patches])
"""


def test_unknown_fields_of_a_runtime_patch_are_problems_without_a_cluster(lint):
    code, problems = lint(PATCH)
    volumes = "patches.0.trainingRuntimeSpec.template.spec.replicatedJobs[node].template.spec.template.spec.volumes"
    assert code == 2
    assert [problem["problem"] for problem in problems] == [
        f"{volumes}[scratch].emptydir: is unknown; use emptyDir",
        f"{volumes}[data].emptyDir.sizeLimt: is unknown; use sizeLimit",
    ]


def test_every_task_of_a_file_that_is_refused_is_a_problem_with_its_line(lint):
    code, problems = lint("""
        TrainJobOperator(task_id="mistyped", runtme="python")
        good = TrainJobOperator(task_id="good", runtime="python", trainer=CustomTrainer(train, {"lr": 1.0}))
        bad = TrainJobOperator(
            task_id="bad", runtime="python", trainer=CustomTrainer(train, {"lr": 1.0}), on_kill="never"
        )
        good >> bad
        TrainJobOperator(task_id="nodes", runtime="python", trainer=CustomTrainer(train, {"lr": 1}, num_nodes=0))
    """)
    assert code == 2
    lines = (len(HEAD.splitlines()) + 2, len(HEAD.splitlines()) + 4)
    assert [(each["file"], each.get("dag"), each.get("task")) for each in problems][:2] == [
        (f"dags/nightly.py:{lines[0]}", "nightly", "mistyped"),
        (f"dags/nightly.py:{lines[1]}", "nightly", "bad"),
    ]
    assert "runtme" in problems[0]["problem"]
    assert "on_kill" in problems[1]["problem"]
