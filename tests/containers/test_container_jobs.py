"""TrainJobs on a real engine: behaviour that the backend contract does not cover."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import tarfile
import time
from importlib.util import find_spec
from pathlib import Path

import container_engine
import pytest
from nested_training import train_in_a_child

from trainer_core import (
    Checkpoints,
    ContainerBackendConfig,
    CustomTrainer,
    CustomTrainerContainer,
    DeleteAfter,
    FileDatasetInitializer,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    MlflowServer,
    Name,
    Owner,
    RuntimePatch,
    SecretRef,
    Tracking,
    TrainerCommand,
    VolumeDatasetInitializer,
)
from trainer_core.backends.container import names
from trainer_core.base.errors import UnsupportedError
from trainer_core.definition.options import (
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    TrainingRuntimeSpecPatch,
)
from trainer_core.model.jobs import Category, TrainJob
from trainer_core.testing.training_functions import (
    print_lines,
    read_files,
    return_value,
    run_forever,
    save_checkpoints,
)

PATIENCE = 300.0

#: Program of a test initializer image: prints its settings and writes a file where nodes read it.
FETCHES = """
import hashlib, os, pathlib, sys
env = os.environ
role = sys.argv[1]
print('fetching', env['STORAGE_URI'], 'without', env.get('IGNORE_PATTERNS'), flush=True)
if 'fail' in env['STORAGE_URI']:
    import time
    print('no such repository', end='', file=sys.stderr, flush=True)
    time.sleep(0.2)
    sys.exit('')  # Prints the end of the line.
if 'hang' in env['STORAGE_URI']:
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    time.sleep(600)
place = pathlib.Path('/workspace', role)
if 'cached' in env['STORAGE_URI']:
    kept = pathlib.Path(env['TRAINJOB_INITIALIZE_CACHE'], 'one')
    print('found' if kept.exists() else 'fetched')
    kept.mkdir(parents=True, exist_ok=True)
    pathlib.Path(env['TRAINJOB_INITIALIZE_TARGET']).symlink_to(kept)
place.mkdir(parents=True, exist_ok=True)
(place / 'data.txt').write_text(env['STORAGE_URI'])
token = env.get('ACCESS_TOKEN')
(place / 'token.txt').write_text(hashlib.sha256(token.encode()).hexdigest() if token else 'none')
"""


def build_initializer_image(engine, role):
    """Build an initializer image from the test image, once for each engine."""
    name = f"localhost/trainjob-test-{role}-initializer:5"
    if not engine.has_image(name):
        lines = [f"FROM {container_engine.IMAGE}", f"ENTRYPOINT {json.dumps(['python3', '-c', FETCHES, role])}"]
        data = "\n".join(lines).encode()
        context, made = io.BytesIO(), tarfile.TarInfo("Dockerfile")
        made.size = len(data)
        with tarfile.open(fileobj=context, mode="w") as writer:
            writer.addfile(made, io.BytesIO(data))
        context.seek(0)
        list(engine._api.build(fileobj=context, custom_context=True, tag=name, rm=True))
    return name


@pytest.fixture
def fetching(sandbox):
    images = {
        f"{role}_initializer_image": build_initializer_image(sandbox.engine, role) for role in ("dataset", "model")
    }
    return lambda **settings: sandbox.client(**images, **settings)


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    assert result, f"timeout: {what}"
    return result


def wait_until_running(client, name="job", steps=1) -> TrainJob:
    wait_until(
        lambda: [s.status for s in client.get_job(name).steps].count("Running") == steps, f"{steps} running steps"
    )
    return client.get_job(name)


def train(client, func=return_value, args=None, *, options=(), initializer=None, **fields):
    trainer = CustomTrainer(func=func, func_args=args, **fields)
    return client.train(runtime="python", trainer=trainer, initializer=initializer, options=[Name("job"), *options])


def meet_at_first_node():
    """The first node listens under its host name; the others connect and send their rank."""
    import json
    import os
    import socket
    import time

    port, rank, world = 29500, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = f"{os.environ['TRAINJOB_NAME']}-node-0"
    if rank == 0:
        with socket.create_server(("", port)) as server:
            met = []
            while len(met) < world - 1:
                with server.accept()[0] as peer:
                    met.append(json.loads(peer.recv(100)))
        return {"met": sorted(met), "host": socket.gethostname()}
    for _ in range(600):
        try:
            with socket.create_connection((master, port), timeout=5) as peer:
                peer.sendall(json.dumps(rank).encode())
            return None
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(master)


def show_tracking():
    import hashlib
    import os

    found = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
    password = found.pop("MLFLOW_TRACKING_PASSWORD")
    return {**found, "password": hashlib.sha256(password.encode()).hexdigest()}


def inspect_environment():
    import os
    from pathlib import Path

    shm = os.statvfs("/dev/shm")
    return {
        "user": [os.getuid(), os.getgid()],
        "shm": shm.f_blocks * shm.f_frsize,
        "data": Path("/data/file.txt").read_text(),
        "writable": os.access("/data", os.W_OK),
        "scratch": sorted(str(path) for path in Path("/scratch").iterdir()),
    }


def patch(**pod):
    job = JobTemplatePatch(spec=JobSpecPatch(template=PodTemplatePatch(spec=PodSpecPatch(**pod))))
    nodes = ReplicatedJobPatch(name="node", template=job)
    template = JobSetTemplatePatch(spec=JobSetSpecPatch(replicated_jobs=[nodes]))
    return RuntimePatch(training_runtime_spec=TrainingRuntimeSpecPatch(template=template))


def test_nodes_reach_the_first_node_by_its_host_name(sandbox):
    client = sandbox.client()
    train(client, meet_at_first_node, num_nodes=3)
    outcome = client.wait("job")
    assert outcome.result == {"met": [1, 2], "host": "job-node-0"}


def sums():
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    total = torch.tensor([float(distributed.get_rank())])
    distributed.all_reduce(total)
    world = distributed.get_world_size()
    distributed.destroy_process_group()
    return {"sum": total.item(), "processes": world}


@pytest.mark.slow
def test_torchrun_trains_with_two_processes_on_each_of_two_nodes(sandbox):
    torch = find_spec("torch")
    if torch is None or sys.version_info[:2] != (3, 11):
        pytest.skip("needs torch for the Python 3.11 of the image, to be lent to its containers")
    # The image has no torch, so the packages of this machine are mounted.
    packages = str(Path(torch.origin).parents[1])
    node = ContainerPatch(
        name="node",
        env=[{"name": "PYTHONPATH", "value": "/packages"}],
        volume_mounts=[{"name": "packages", "mountPath": "/packages", "readOnly": True}],
    )
    lent = patch(volumes=[{"name": "packages", "hostPath": {"path": packages}}], containers=[node])
    client = sandbox.client()
    trainer = CustomTrainer(func=sums, num_nodes=2, resources_per_node={"cpu": 2})
    client.train(runtime="torch-distributed", trainer=trainer, options=[Name("job"), lent])
    assert client.wait("job").result == {"sum": 6.0, "processes": 4}


def test_two_jobs_can_use_the_same_port_at_the_same_time(sandbox):
    client = sandbox.client()
    for name in ("one", "two"):
        client.train(
            runtime="python", trainer=CustomTrainer(func=meet_at_first_node, num_nodes=2), options=[Name(name)]
        )
    assert [client.wait(name).result["met"] for name in ("one", "two")] == [[1], [1]]


def test_a_deleted_job_leaves_nothing_on_the_engine(sandbox):
    client = sandbox.client()
    train(client, run_forever, num_nodes=2)
    wait_until_running(client, steps=2)
    client.delete_job("job")
    wait_until(lambda: sandbox.list_objects() == [], "the engine is empty")


def test_a_deleted_job_saves_a_checkpoint_before_its_containers_are_removed(sandbox):
    client = sandbox.client()
    request = client.build_request(
        runtime="python",
        trainer=CustomTrainer(func=save_checkpoints, func_args={"steps": 1_000_000}),
        options=[Checkpoints(every_steps=1_000_000)],
        owner=Owner(key="dag/run/task"),
    )
    ref = client.submit(request)
    wait_until(lambda: client.observe(ref).progress, "the training has made a step")
    client.delete_job(ref)
    again = client.submit(request)
    resumed = wait_until(lambda: client.observe(again).progress, "the training has made another step")
    assert resumed.resumed_from


def test_each_user_keeps_checkpoints_in_the_default_volume(sandbox):
    client = sandbox.client(checkpoints_uri=ContainerBackendConfig().checkpoints_uri)
    for user in (0, 1234):
        node = ContainerPatch(name="node", security_context={"runAsUser": user})
        trainer = CustomTrainer(func=save_checkpoints, func_args={"steps": 2})
        options = [Name(f"job-{user}"), Checkpoints(every_steps=1, ttl=60), patch(containers=[node])]
        outcome = client.wait(client.train(runtime="python", trainer=trainer, options=options))
        assert (outcome.status, outcome.checkpoint) == ("Complete", 2)


def test_a_child_that_trains_saves_when_its_container_is_stopped(sandbox):
    """SIGTERM ends its parents at once, and the first process of the container waits for it."""
    client = sandbox.client()
    request = client.build_request(
        runtime="python",
        trainer=CustomTrainer(func=train_in_a_child, func_args={"resumed": "/nowhere"}),
        options=[Checkpoints(every_steps=100_000, grace=60), Name("job")],
    )
    ref = client.submit(request)
    wait_until(lambda: client.observe(ref).progress, "the training has made a step")
    client.suspend(ref)
    wait_until(lambda: client.get_job("job").status == "Suspended", "the job is suspended")
    client.resume(ref)
    wait_until(lambda: getattr(client.observe(ref).progress, "resumed_from", None), "the training is resumed")


def test_auto_remove_false_keeps_the_containers_and_frees_the_name(sandbox):
    client = sandbox.client(auto_remove=False)
    train(client, return_value, {"value": 1})
    client.wait("job")
    client.delete_job("job")
    (kept,) = sandbox.engine.list_containers(sandbox.label)
    assert "job-node-0." in kept["Names"][0]
    train(client, return_value, {"value": 2})
    assert client.wait("job").result == 2


def test_a_mount_at_tmp_does_not_hide_the_result_of_any_user(sandbox):
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    node = ContainerPatch(name="node", volume_mounts=mounts, security_context={"runAsUser": 1234})
    volumes = [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]
    client = sandbox.client()

    def return_loss():
        return {"loss": 0.5}

    train(client, return_loss, options=[patch(volumes=volumes, containers=[node])])

    assert client.wait("job").result == {"loss": 0.5}


def test_a_patch_sets_volumes_user_and_shared_memory(sandbox):
    (sandbox.folder / "data").mkdir()
    (sandbox.folder / "data" / "file.txt").write_text("from this machine")
    sandbox.folder.chmod(0o755)
    volumes = [
        {"name": "data", "hostPath": {"path": str(sandbox.folder / "data")}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    mounts = [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    node = ContainerPatch(name="node", volume_mounts=mounts, security_context={"runAsUser": 1234, "runAsGroup": 99})
    client = sandbox.client()
    train(client, inspect_environment, options=[patch(volumes=volumes, containers=[node])])
    outcome = client.wait("job")
    assert outcome.result == {
        "user": [1234, 99],
        "shm": 32 * 2**20,
        "data": "from this machine",
        "writable": False,
        "scratch": [],
    }


def test_podman_refuses_a_gpu_request(sandbox):
    if sandbox.engine.product != "podman":
        pytest.skip("Docker supports GPU requests")
    client = sandbox.client()
    with pytest.raises(UnsupportedError, match="Podman ignores gpu"):
        train(client, resources_per_node={"gpu": 1})
    assert sandbox.list_objects() == []


def test_a_container_trainer_runs_its_command(sandbox):
    client = sandbox.client()
    trainer = CustomTrainerContainer(image=container_engine.IMAGE)
    command = TrainerCommand(["python3", "-c", "import os; print(os.environ['RANK'])"])
    client.train(runtime="python", trainer=trainer, options=[Name("job"), command])
    assert client.wait("job").succeeded
    assert list(client.get_job_logs("job")) == ["0"]


def test_a_missing_command_is_diagnosed(sandbox):
    client = sandbox.client()
    trainer = CustomTrainerContainer(image=container_engine.IMAGE)
    client.train(runtime="python", trainer=trainer, options=[Name("job"), TrainerCommand(["no-such-program"])])
    found = client.wait("job").diagnosis
    assert (found.category, found.exit_code, found.step) == (Category.USER_CODE, 127, "node-0")
    assert "no-such-program" in found.reason


def test_a_missing_image_fails_the_job_and_not_the_submission(sandbox):
    client = sandbox.client(pull_policy="Never")
    train(client, image="localhost/no-such-image:1")
    found = client.wait("job").diagnosis
    assert (found.category, found.retryable) == (Category.IMAGE, False)
    assert "localhost/no-such-image:1 does not exist on the engine" in found.reason


@pytest.mark.parametrize("registry", ["localhost:1", "registry.invalid"], ids=["refused", "not resolved"])
def test_an_image_whose_registry_does_not_answer_fails_the_job_and_a_retry_may_help(sandbox, registry):
    client = sandbox.client()
    train(client, image=f"{registry}/no-such-image:1")
    found = client.wait("job").diagnosis
    assert (found.category, found.retryable) == (Category.IMAGE, True)
    assert f"{registry}/no-such-image:1 cannot be pulled" in found.reason


def test_a_killed_node_is_diagnosed_with_its_signal_and_ends_the_other_nodes(sandbox):
    client = sandbox.client()
    train(client, run_forever, num_nodes=2)
    steps = wait_until_running(client, steps=2).steps
    sandbox.engine._api.kill(steps[1].pod_name, signal.SIGKILL)
    found = client.wait("job").diagnosis
    assert (found.category, found.step, found.exit_code) == (Category.INFRASTRUCTURE, "node-1", -9)
    assert (found.node, found.retryable) == (steps[1].pod_name, True)
    wait_until(lambda: [step.status for step in client.get_job("job").steps].count("Running") == 0, "node-0 stops")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_removed_container_fails_the_job(sandbox, nodes):
    client = sandbox.client()
    train(client, run_forever, num_nodes=nodes)
    steps = wait_until_running(client, steps=nodes).steps
    sandbox.engine.remove_container(steps[0].pod_name)
    found = client.wait("job").diagnosis
    # The reason is the removal, or the kill that precedes it.
    assert (found.category, found.step, found.retryable) == (Category.INFRASTRUCTURE, "node-0", True)


def test_a_foreign_container_with_the_name_of_a_node_fails_the_job(sandbox):
    client = sandbox.client()
    name = names.container_name(client.backend._config.namespace, "job", "node-0", 0)
    labels = {names.NAMESPACE_LABEL: client.backend._config.namespace}
    sandbox.engine.create_container(name, {"Image": container_engine.IMAGE, "Cmd": ["true"], "Labels": labels})
    train(client)
    assert f"container '{name}' exists and belongs to no step of this job" in client.wait("job").diagnosis.reason


def test_a_full_volume_fails_the_training(sandbox):
    volumes = [{"name": "out", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    node = ContainerPatch(name="node", volume_mounts=[{"name": "out", "mountPath": "/out"}])
    client = sandbox.client()
    train(client, fill_volume, options=[patch(volumes=volumes, containers=[node])])
    found = client.wait("job").diagnosis
    assert found.category is Category.USER_CODE
    assert "No space left on device" in found.reason


def fill_volume():
    from pathlib import Path

    Path("/out/model").write_bytes(b"x" * 2**22)


def test_initializers_fetch_before_the_nodes_start(sandbox, fetching):
    client = fetching()
    sources = Initializer(
        dataset=HuggingFaceDatasetInitializer("hf://owner/data", ignore_patterns=["*.bin", "*.pt"]),
        model=HuggingFaceModelInitializer("hf://owner/model"),
    )
    train(client, read_files, {"role": "dataset"}, initializer=sources, num_nodes=2)
    outcome = client.wait("job")
    assert outcome.result == {"data.txt": "hf://owner/data", "token.txt": "none"}
    job = client.get_job("job")
    assert [step.name for step in job.steps] == ["dataset-initializer", "model-initializer", "node-0", "node-1"]
    assert max(step.finished for step in job.steps[:2]) <= min(step.started for step in job.steps[2:])
    assert list(client.get_job_logs("job", step="dataset-initializer")) == [
        "fetching hf://owner/data without *.bin,*.pt"
    ]
    client.delete_job("job")
    wait_until(lambda: sandbox.list_objects() == [], "the engine is empty")


@pytest.mark.parametrize("token", ["hf_a-secret-token", SecretRef("hub", "token")], ids=["text", "reference"])
def test_credentials_reach_the_initializer_and_are_not_visible_to_inspect(sandbox, fetching, token, monkeypatch):
    secret = "hf_a-secret-token"
    monkeypatch.setenv("TRAINJOB_INITIALIZE_DATASET_ACCESS_TOKEN", secret)
    client = fetching()
    source = HuggingFaceDatasetInitializer("hf://owner/data", access_token=token)
    train(client, read_files, {"role": "dataset"}, initializer=Initializer(dataset=source))
    assert client.wait("job").result["token.txt"] == hashlib.sha256(secret.encode()).hexdigest()
    (step, _) = client.get_job("job").steps
    visible = [
        sandbox.engine.inspect_container(step.pod_name),
        sandbox.engine.list_containers(sandbox.label),
        sandbox.engine.list_volumes(sandbox.label),
    ]
    assert secret not in json.dumps(visible)
    wait_until(
        lambda: sandbox.engine.read_file(step.pod_name, "/trainjob-secrets.json") == b"{}", "the credentials are erased"
    )


def test_the_tracking_server_and_its_credentials_reach_a_function_and_are_not_visible_to_inspect(sandbox):
    secret = "s3cr3t-word"
    client = sandbox.client()
    client.runs.server = MlflowServer("http://127.0.0.1:1", username="ada", password=secret)
    train(client, show_tracking, options=[Tracking(training_uri="http://mlflow.example")])
    untracked = sandbox.client()  # No server listens, and a wait would try to reach it.
    outcome = untracked.wait("job")

    (step,) = untracked.get_job("job").steps
    visible = [sandbox.engine.inspect_container(step.pod_name), sandbox.engine.list_volumes(sandbox.label)]
    assert outcome.result == {
        "MLFLOW_EXPERIMENT_NAME": "trainjob",
        "MLFLOW_TRACKING_URI": "http://mlflow.example",
        "MLFLOW_TRACKING_USERNAME": "ada",
        "password": hashlib.sha256(secret.encode()).hexdigest(),
    }
    assert secret not in json.dumps(visible)
    wait_until(
        lambda: sandbox.engine.read_file(step.pod_name, "/trainjob-secrets.json") == b"{}", "the credentials are erased"
    )


def read_secret():
    import hashlib
    import os
    from pathlib import Path

    digest = hashlib.sha256(os.environ["AWS_SECRET_ACCESS_KEY"].encode()).hexdigest()
    return [digest, oct(Path("/trainjob-secrets.json").stat().st_mode & 0o777)]


def test_a_secret_of_the_trainer_reaches_a_function_and_is_not_visible_to_inspect(sandbox, monkeypatch):
    secret = "s3cr3t-of-a-bucket"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    client = sandbox.client()
    train(client, read_secret, env={"AWS_SECRET_ACCESS_KEY": SecretRef("minio", "secret")})
    outcome = client.wait("job")
    (step,) = client.get_job("job").steps
    visible = [sandbox.engine.inspect_container(step.pod_name), sandbox.engine.list_volumes(sandbox.label)]
    assert outcome.result == [hashlib.sha256(secret.encode()).hexdigest(), "0o400"]
    assert secret not in json.dumps(visible)


def test_a_failed_initializer_is_diagnosed_with_the_end_of_its_log(sandbox, fetching):
    client = fetching()
    source = HuggingFaceDatasetInitializer("hf://owner/fail")
    train(client, initializer=Initializer(dataset=source))
    found = client.wait("job").diagnosis
    assert (found.category, found.step, found.exit_code) == (Category.INITIALIZER, "dataset-initializer", 1)
    assert found.reason == "no such repository"
    assert "fetching hf://owner/fail without None" in found.log_tail


def test_an_initializer_that_exceeds_its_timeout_is_stopped(sandbox, fetching):
    client = fetching(initializer_timeout=1)
    train(client, initializer=Initializer(dataset=HuggingFaceDatasetInitializer("hf://owner/hang")))
    found = client.wait("job").diagnosis
    assert (found.category, found.step) == (Category.INITIALIZER, "dataset-initializer")
    assert "1 s (initializer_timeout)" in found.reason
    wait_until(lambda: client.get_job("job").steps[0].status != "Running", "the initializer stops")


def test_initialize_fetches_into_a_volume_that_other_jobs_mount(sandbox, fetching):
    client = fetching()
    sources = Initializer(
        dataset=HuggingFaceDatasetInitializer("hf://owner/data"), model=HuggingFaceModelInitializer("hf://owner/model")
    )
    fetched = client.wait(client.initialize(sources, [Name("fetch")]))
    volume = f"{container_engine.namespace(sandbox.folder)}.fetch"
    assert fetched.result == {"dataset": f"pvc://{volume}/dataset", "model": f"pvc://{volume}/model"}
    client.delete_job("fetch")
    source = Initializer(dataset=VolumeDatasetInitializer(fetched.result["dataset"]))
    train(client, read_files, {"role": "dataset"}, initializer=source)
    assert client.wait("job").result["data.txt"] == "hf://owner/data"


def test_a_second_job_finds_cached_data_for_any_user_of_its_nodes(sandbox, fetching):
    client = fetching()
    fetch = Initializer(dataset=HuggingFaceDatasetInitializer("hf://owner/cached"))
    logs, results = [], []
    node = ContainerPatch(name="node", security_context={"runAsUser": 1234})
    for name, options in (("one", []), ("two", [patch(containers=[node])])):
        trainer = CustomTrainer(func=read_files, func_args={"role": "dataset"})
        client.train(runtime="python", trainer=trainer, initializer=fetch, options=[Name(name), *options])
        results.append(client.wait(name).result["data.txt"])
        logs += list(client.get_job_logs(name, step="dataset-initializer"))[1:]
    assert (logs, results) == (["fetched", "found"], ["hf://owner/cached"] * 2)


def test_a_resumed_job_does_not_run_its_initializers_again(sandbox, fetching):
    client = fetching()
    source = HuggingFaceDatasetInitializer("hf://owner/data")
    train(client, run_forever, initializer=Initializer(dataset=source))
    lines = client.get_job_logs("job", follow=True)
    assert next(lines) == "it runs"
    client.suspend("job")
    wait_until(lambda: client.get_job("job").steps[1].status == "Pending", "the node stops")
    client.resume("job")
    assert next(lines) == "it runs"
    steps = client.get_job("job").steps
    assert [(step.status, step.restarts) for step in steps] == [("Succeeded", 0), ("Running", 1)]


def test_a_linked_folder_cannot_be_written_to(sandbox):
    (sandbox.folder / "data").mkdir()
    client = sandbox.client()
    source = FileDatasetInitializer((sandbox.folder / "data").as_uri(), link=True)
    train(client, write_into_dataset, initializer=Initializer(dataset=source))
    assert "Read-only file system" in client.wait("job").diagnosis.reason


def write_into_dataset():
    from trainer_core import dataset_path

    (dataset_path() / "mine.txt").write_text("mine")


def test_another_client_continues_a_log_from_the_cursor(sandbox):
    client = sandbox.client()
    ref = client.get_job_ref(train(client, print_lines, {"lines": 20}))
    client.wait(ref)
    place, lines = {}, []
    for _ in range(9):
        tail = sandbox.client().tail_job_logs(ref, json.loads(json.dumps(place)), job_ended=True, max_lines=3)
        lines, place = lines + [line for _, line in tail.lines], tail.cursor
    assert lines == [f"line {number}" for number in range(20)]


def test_reap_deletes_a_job_after_delete_after(sandbox):
    client = sandbox.client()
    train(client, options=[DeleteAfter(1)])
    client.wait("job")
    wait_until(lambda: client.reap() == ["job"], "the job expires")
    assert sandbox.list_objects() == []


def test_reap_removes_what_a_killed_deletion_left(sandbox):
    client = sandbox.client()
    ref = client.get_job_ref(train(client))
    client.wait(ref)
    sandbox.engine.remove_volume(names.claim_volume(ref.namespace, "job"))
    assert client.list_jobs() == []
    for each in sandbox.engine.list_containers(sandbox.label):
        sandbox.engine.remove_container(each["Id"])
    client.reap()
    assert sandbox.list_objects() == []


def test_reap_removes_the_files_of_large_projects_that_no_job_of_any_namespace_uses_after_a_day(sandbox):
    client, project = sandbox.client(), sandbox.folder / "project"
    other = sandbox.client(namespace=f"{container_engine.namespace(sandbox.folder)}-other")
    project.mkdir()
    for name in ("first", "second"):
        (project / "train.py").write_text("def train():\n    pass\n")
        (project / "noise.bin").write_bytes(os.urandom(500_000))
        trainer = CustomTrainer(func="train:train", code=str(project))
        client.wait(client.submit(client.build_request(runtime="python", trainer=trainer, options=[Name(name)])))
    stored = {path.as_uri(): path for path in (sandbox.folder / "home/containers/code").iterdir()}
    used = client.get_job_request("second").project.uri
    client.delete_job("first")
    other.reap()
    assert (len(stored), all(path.exists() for path in stored.values())) == (2, True)
    for path in stored.values():
        os.utime(path, (0, 0))
    other.reap()
    assert [uri for uri, path in stored.items() if path.exists()] == [used]


@pytest.mark.filterwarnings("ignore", "error:::airflow_provider", "error:::trainer_core")
def test_an_airflow_task_runs_in_a_container(sandbox, run_trainjob_task, monkeypatch):
    from airflow_provider.operators.trainjob import TrainJobOperator

    monkeypatch.setenv("TRAINJOB_HOME", str(sandbox.folder / "home"))
    done = run_trainjob_task(
        TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(func=return_value, func_args={"value": {"accuracy": 0.5}}),
            backend_config=container_engine.config(sandbox.folder),
        )
    )
    assert (done.state, done.returned) == ("success", {"accuracy": 0.5})
    (job,) = sandbox.client().list_jobs()
    assert job.status == "Complete"
