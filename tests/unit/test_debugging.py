"""Debugging on another machine: the command, the comparison of two failures, and what the session lacks of a job."""

from __future__ import annotations

import io
import signal
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from trainer_core import (
    Category,
    CustomTrainer,
    DebugBackendConfig,
    Diagnosis,
    Name,
    Outcome,
    TrainerClient,
    TrainJobRef,
)
from trainer_core.base.errors import UnsupportedError
from trainer_core.client import debug_request
from trainer_core.client.debug_session import Session, run
from trainer_core.client.debugging import _check_python
from trainer_core.lifecycle import debugging
from trainer_core.model.backend_names import OWN_EXTENSIONS
from trainer_core.model.jobs import TrainJob
from trainer_core.model.request import PART_OF_FIELD, Code, TrainerRequest, TrainJobRequest
from trainer_core.model.runtimes import Runtime, RuntimeTrainer, TrainerType

TRACEBACK = """Traceback (most recent call last):
  File "pkg/train.py", line {line}, in train
    step()
  File "/usr/lib/python3.11/site-packages/torch/nn.py", line 90, in forward
    raise ValueError
ValueError: {message}"""


def diagnosis(line=12, message="no luck", category=Category.USER_CODE, **more):
    return Diagnosis(
        category=category,
        reason=f"ValueError: {message}",
        traceback=TRACEBACK.format(line=line, message=message),
        **more,
    )


def crash(code):
    return Diagnosis(category=Category.USER_CODE, reason=f"it ended with exit code {code}", exit_code=code)


def outcome(found, backend="kubernetes", namespace="team"):
    return Outcome(ref=TrainJobRef(backend, namespace, "nightly-1", "uid").to_dict(), status="Failed", diagnosis=found)


@pytest.mark.parametrize(
    ("backend", "namespace", "command"),
    [
        ("kubernetes", "team", "trainjob --backend kubernetes --namespace team debug nightly-1"),
        ("container", "default", "trainjob --backend container --namespace default debug nightly-1"),
        ("local", "/home/a user/.trainjob", "trainjob --home '/home/a user/.trainjob' debug nightly-1"),
    ],
)
def test_the_command_names_where_the_job_is(backend, namespace, command):
    assert debugging.suggest_command(outcome(diagnosis(), backend, namespace)) == command


@pytest.mark.parametrize(
    ("found", "backend"),
    [
        (diagnosis(category=Category.OUT_OF_MEMORY), "kubernetes"),
        (diagnosis(category=Category.PREEMPTED), "kubernetes"),
        (crash(137), "kubernetes"),
        (None, "kubernetes"),
        (diagnosis(), "debug"),
    ],
)
def test_no_command_is_suggested_for_what_a_debugger_does_not_show(found, backend):
    assert debugging.suggest_command(outcome(found, backend)) is None


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (diagnosis(), diagnosis(message="half is 0x7f"), True),
        (diagnosis(), diagnosis(step="node-3", node="gpu-1"), True),
        (diagnosis(), diagnosis(line=13), False),
        (diagnosis(), replace(diagnosis(), reason="KeyError: 'no luck'"), False),
        (diagnosis(), crash(1), False),
        (crash(-11), crash(139), True),
        (crash(-11), crash(134), False),
        (replace(crash(1), reason="a training process crashed with SIGSEGV (a memory fault)"), crash(-11), True),
        (crash(3), crash(4), False),
        (crash(-1), replace(crash(1), exit_code=None), False),
    ],
)
def test_failures_are_the_same_by_type_and_line_of_the_users_code(first, second, same):
    assert debugging.is_same_failure(first, second) is same


@pytest.mark.parametrize(
    ("traceback", "line"),
    [
        (TRACEBACK.format(line=7, message=""), ("train.py", 7)),
        (
            '  File "/tmp/trainjob-x/function/trainjob_0a1b2c3d4e5f.py", line 3, in train',
            ("trainjob_0a1b2c3d4e5f.py", 3),
        ),
        ('  File "<string>", line 1, in <module>', ("<string>", 1)),
        ("ValueError: a text without frames", None),
        ('  File "/usr/lib/a.py", line 1, in a\n  File "/opt/pkg/b.py", line 2, in b', ("b.py", 2)),
        ('  File "train.py", line 4\n    a = = 1\nSyntaxError: invalid syntax', ("train.py", 4)),
    ],
)
def test_the_line_of_the_user_is_the_innermost_one_of_relative_files(traceback, line):
    assert debugging.find_user_line(traceback) == line


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (Code(kind="cloudpickle", text="3.8:gASV", entry="train"), None),
        *[
            (
                Code(kind="source", text="", entry="train"),
                replace(diagnosis(), traceback=f'  File "{path}", line 9, in f'),
            )
            for path in (
                "/usr/lib/python3.8/json/decoder.py",
                "/opt/venv/lib64/python3.8/site-packages/torch/nn/modules/module.py",
                "/usr/local/lib/python3.8/queue.py",
            )
        ],
        (
            Code(kind="source", text="", entry="train"),
            replace(diagnosis(), traceback=TRACEBACK.replace("3.11", "3.8").format(line=1, message="")),
        ),
    ],
)
def test_another_minor_version_of_python_is_refused(code, failure):
    with pytest.raises(UnsupportedError, match=r"'job' ran with Python 3\.8, and this is Python 3"):
        _check_python("job", code, failure)


def build_job(framework="torch", nodes=1):
    runtime = Runtime("own-runtime", RuntimeTrainer(TrainerType.CUSTOM_TRAINER, framework, "image"))
    return TrainJob("job", runtime, [], nodes, datetime(2026, 11, 24, tzinfo=timezone.utc))


CODE = {"kind": "source", "text": "def train(): ...", "entry": "train", "args": {"lr": 0.1}}
#: A value for each field of a request that the session leaves out, and what is printed of it.
NAMED = {
    "patches": ([{"manager": "m"}], "RuntimePatch: what it changes in pods"),
    "distributed": ({"limits": {"memory": "1Gi", "nvidia.com/gpu": 2}}, "DistributedConfig: what it changes in pods"),
    "pytorch_job": ({}, "PyTorchJobSpec: what it changes in pods"),
    "runai": ({}, "RunaiSpec: what it changes in pods"),
    "runtime": ({"name": "own-runtime"}, "runtime 'own-runtime': Python packages, environment and system libraries"),
    "tracking": ({}, "tracking: MLflow and Weights & Biases write into a temporary folder"),
    "checkpoints": ({"load": "owner"}, "load=owner: starts from the beginning"),
    "initializer": (
        {"dataset": {"storage_uri": "pvc://data"}},
        "dataset pvc://data: only nodes of the cluster reach it",
    ),
}
CARRIED = {"name", "trainer", "initializer", "checkpoints", "partition"}
#: They do not change what the function computes.
NOT_NEEDED = {
    *("version", "owner", "metadata", "active_deadline_seconds", "start_within", "suspend", "managed_by", "workspace"),
    *("delete_after_seconds", "more_memory", "attempt_memory", "stalled", "search", "literal_secrets"),
    *("restart_policy", "attempt_restarts", "retry_of", "traceparent", "reuse", "reuse_key", "defaults"),
    "secret_names",
}
NAMED_OF_TRAINER = {
    "image": ("custom:1", "image custom:1: Python packages, environment and system libraries of its image"),
    "num_nodes": (4, "world size: 4 nodes, 1 processes each; here one process, rank 0"),
    "num_proc_per_node": (2, "2 processes each; here one process, rank 0, with WORLD_SIZE=1; --on local --nodes"),
    "resources_per_node": ({"cpu": 2, "gpu": 8}, "nvidia.com/gpu: 8 on each node"),
    "result_uri": ("/tmp/result.json", "result_uri: the result is not written to it"),
}
CARRIED_OF_TRAINER = {"kind", "code", "packages", "pip_index_urls", "env"}
#: Only an image or a recipe has them, or they are about the way of the code.
NOT_NEEDED_OF_TRAINER = {"command", "args", "config", "recipe", "code_uri"}


def list_left_out(trainer=None, nodes=1, **fields):
    request = TrainJobRequest.parse({"trainer": {"kind": "custom", "code": CODE, **(trainer or {})}, **fields})
    job = build_job(nodes=nodes)
    return debug_request.list_left_out(request, request.work.trainer, job, None, fetchable=("hf", "s3", "file"))


def test_each_field_of_a_request_is_carried_named_or_not_needed():
    assert (
        CARRIED | NAMED.keys() | NOT_NEEDED
        == {"version"} | PART_OF_FIELD.keys() - {"extensions"} | OWN_EXTENSIONS.keys()
    )
    assert CARRIED_OF_TRAINER | NAMED_OF_TRAINER.keys() | NOT_NEEDED_OF_TRAINER == TrainerRequest.model_fields.keys()


@pytest.mark.parametrize("field", sorted(NAMED))
def test_a_field_that_is_left_out_is_named(field):
    value, line = NAMED[field]
    assert line in "\n".join(list_left_out(**{field: value}))


@pytest.mark.parametrize("field", sorted(NAMED_OF_TRAINER))
def test_a_field_of_the_trainer_that_is_left_out_is_named(field):
    value, line = NAMED_OF_TRAINER[field]
    nodes = value if field == "num_nodes" else 1
    assert line in "\n".join(list_left_out({field: value}, nodes))


def test_what_a_function_needs_of_a_job_is_carried_and_all_that_it_writes_is_in_the_folder_of_the_session():
    original = TrainJobRequest.parse(
        {
            "owner": {"key": "dag/run/task"},
            "trainer": {
                "kind": "custom",
                "code": CODE,
                "packages": ["torch==2.13.0"],
                "env": {
                    "MODE": "fast",
                    "TOKEN": {"name": "hub", "key": "token"},
                    "MLFLOW_TRACKING_URI": "https://team",
                },
                "result_uri": "/results/night.json",
            },
            "initializer": {"dataset": {"storage_uri": "pvc://data"}, "model": {"storage_uri": "hf://owner/model"}},
            "checkpoints": {"uri": "s3://bucket/runs", "load": "owner", "keep": 5},
            "tracking": {"run_id": "abc"},
            "partition": "emea",
        }
    )
    folder = Path("/tmp/a folder")
    here = debug_request.build_request(
        original,
        original.work.trainer,
        build_job(),
        folder=folder,
        given_env={"TOKEN": "of this shell"},
        fetchable=("hf", "s3", "file"),
    )
    assert (here.context.name, here.context.owner, here.policy.tracking, here.work.trainer.packages) == (
        "job",
        None,
        None,
        (),
    )
    assert here.work.trainer.code == original.work.trainer.code
    assert here.work.trainer.env == {
        "MODE": "fast",
        "MLFLOW_TRACKING_URI": "file:///tmp/a%20folder/mlruns",
        "WANDB_MODE": "offline",
        "WANDB_DIR": "/tmp/a folder",
        "COMET_START_ONLINE": "0",
        "COMET_OFFLINE_DIRECTORY": "/tmp/a folder",
    }
    assert (here.work.trainer.result_uri, here.work.initializer.dataset) == (None, None)
    assert (here.work.initializer.model, here.context.partition) == (original.work.initializer.model, "emea")
    assert here.policy.checkpoints.model_dump(exclude_defaults=True) == {
        "uri": "file:///tmp/a%20folder/checkpoints",
        "keep": 5,
        "scope": "job/g-0",
    }


LOCAL = TrainJobRequest.parse(
    {
        "trainer": {
            "kind": "custom",
            "code": {"kind": "reference", "text": "pkg.train:train", "entry": "train"},
            "packages": ["torch==2.13.0"],
            "pip_index_urls": ["https://index"],
            "num_nodes": 4,
        },
        "initializer": {"dataset": {"storage_uri": "s3://bucket/all"}, "model": {"storage_uri": "hf://owner/model"}},
    }
)


def test_only_a_dataset_can_be_replaced():
    sources = {"model": {"storage_uri": "pvc://claim/model"}}
    assert list_left_out(initializer=sources)[-1] == "model pvc://claim/model: only nodes of the cluster reach it"
    request = TrainJobRequest.parse({"trainer": {"kind": "custom", "code": CODE}, "initializer": sources})
    left_out = debug_request.list_left_out(
        request, request.work.trainer, build_job(), None, fetchable=(), dataset="file:///sample", runs_image=False
    )
    assert left_out == ["model pvc://claim/model: only nodes of the cluster reach it"]


def test_ranks_that_run_as_local_processes_have_the_packages_and_the_dataset_that_was_given():
    here = debug_request.build_request(
        LOCAL,
        LOCAL.work.trainer,
        build_job("plain"),
        folder=Path("/tmp/session"),
        dataset="file:///home/sample",
        fetchable=("hf", "s3", "file"),
        nodes=2,
    )
    assert (here.work.runtime.name, here.work.trainer.num_nodes) == ("python", 2)
    assert (here.work.trainer.packages, here.work.trainer.pip_index_urls) == (("torch==2.13.0",), ("https://index",))
    assert (here.work.initializer.dataset.storage_uri, here.work.initializer.dataset.link) == (
        "file:///home/sample",
        True,
    )
    assert here.work.initializer.model == LOCAL.work.initializer.model
    assert here.policy.checkpoints is None


def test_the_list_of_what_is_left_out_is_complete():
    left_out = debug_request.list_left_out(
        LOCAL,
        LOCAL.work.trainer,
        build_job(nodes=4),
        replace(outcome(None), resumed_from=400),
        fetchable=("hf", "s3", "file"),
        dataset="file:///home/sample",
        nodes=2,
        runs_image=False,
    )
    assert left_out == [
        "world size: 4 nodes, 1 processes each; here 2 nodes of one process",
        "pkg.train:train: imported from what is installed here",
        "dataset s3://bucket/all: replaced by file:///home/sample",
        "checkpoint: it resumed from step 400; --from-checkpoint starts from the newest one",
    ]


def test_a_session_from_a_checkpoint_lacks_only_the_random_state_of_a_job_of_one_process():
    request = TrainJobRequest.parse({"trainer": {"kind": "custom", "code": CODE, "resources_per_node": {"cpu": 4}}})
    left_out = debug_request.list_left_out(
        request,
        request.work.trainer,
        build_job(),
        replace(outcome(None), resumed_from=4),
        fetchable=(),
        step=9,
        runs_image=False,
    )
    assert left_out == ["random state: what was drawn before step 9, unless the checkpoint has it"]


def fails() -> None:
    raise ValueError("no luck")


def test_the_tracer_of_an_editor_and_the_handler_of_ctrl_c_are_kept(tmp_path, monkeypatch, capsys):
    def trace(frame, event, arg):
        return None

    monkeypatch.setattr("sys.stdin", io.StringIO("c\nq\n"))
    handler, before = signal.getsignal(signal.SIGINT), sys.gettrace()
    request = TrainerClient(DebugBackendConfig()).build_request(
        runtime="python", trainer=CustomTrainer(func=fails), options=[Name("job")]
    )
    sys.settrace(trace)
    try:
        line = fails.__code__.co_firstlineno + 1
        outcome = run(Session(request.to_json(), str(tmp_path), file=Path(__file__).name, line=line))
        kept = sys.gettrace()
    finally:
        sys.settrace(before)
    assert (kept, signal.getsignal(signal.SIGINT)) == (trace, handler)
    assert outcome.diagnosis.reason == "ValueError: no luck"
    assert capsys.readouterr().out.count("(Pdb)") == 2


@pytest.mark.parametrize("name", ["Ended", "GeneratorExit"])
def test_what_a_function_raises_fails_its_job_in_this_process_and_the_working_directory_is_that_of_before(
    tmp_path, name
):
    def train(path, name):
        import builtins
        import os

        os.chdir(path)
        raise getattr(builtins, name, type(name, (BaseException,), {}))("over")

    before = Path.cwd()
    client = TrainerClient(DebugBackendConfig())
    trainer = CustomTrainer(func=train, func_args={"path": str(tmp_path), "name": name})
    outcome = client.wait(client.train(runtime="python", trainer=trainer))
    assert Path.cwd() == before
    assert outcome.diagnosis.reason == f"{name}: over"
