"""TrainJobs on a real engine: what the contract of all backends does not say."""

from __future__ import annotations

import hashlib
import io
import json
import signal
import sys
import tarfile
import time
from importlib.util import find_spec
from pathlib import Path

import container_engine
import pytest

from trainer_core import (
    CustomTrainer,
    CustomTrainerContainer,
    DeleteAfter,
    FileDatasetInitializer,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    Name,
    RuntimePatch,
    TrainerCommand,
    VolumeDatasetInitializer,
)
from trainer_core.backends.container import names
from trainer_core.errors import UnsupportedError
from trainer_core.jobs import TrainJob
from trainer_core.options import (
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
from trainer_core.outcome import Category
from trainer_core.testing.functions import goes_on, prints, reads, returns

PATIENCE = 60.0

#: What an initializer's image does: tells what it was told, and leaves a file where nodes look for it.
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


def image_that_fetches(engine, role):
    """An image on the test image, made once."""
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
def fetching(here):
    images = {f"{role}_initializer_image": image_that_fetches(here.engine, role) for role in ("dataset", "model")}
    return lambda **settings: here.client(**images, **settings)


def until(wanted, what="it"):
    end = time.monotonic() + PATIENCE
    while not (found := wanted()) and time.monotonic() < end:
        time.sleep(0.1)
    assert found, f"{what} did not come"
    return found


def running(client, name="job", steps=1) -> TrainJob:
    until(lambda: [s.status for s in client.get_job(name).steps].count("Running") == steps, f"{steps} running steps")
    return client.get_job(name)


def train(client, func=returns, args=None, *, options=(), initializer=None, **fields):
    trainer = CustomTrainer(func=func, func_args=args, **fields)
    return client.train(runtime="python", trainer=trainer, initializer=initializer, options=[Name("job"), *options])


def meets():
    """The first node listens under its name; the others say who they are."""
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


def looks_around():
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


def test_nodes_find_the_first_of_them_by_its_name(here):
    client = here.client()
    train(client, meets, num_nodes=3)
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
def test_torchrun_trains_with_two_processes_on_each_of_two_nodes(here):
    torch = find_spec("torch")
    if torch is None or sys.version_info[:2] != (3, 11):
        pytest.skip("needs torch for the Python 3.11 of the image, to be lent to its containers")
    # The image has no torch: it is shown this machine's.
    packages = str(Path(torch.origin).parents[1])
    node = ContainerPatch(
        name="node",
        env=[{"name": "PYTHONPATH", "value": "/packages"}],
        volume_mounts=[{"name": "packages", "mountPath": "/packages", "readOnly": True}],
    )
    lent = patch(volumes=[{"name": "packages", "hostPath": {"path": packages}}], containers=[node])
    client = here.client()
    trainer = CustomTrainer(func=sums, num_nodes=2, resources_per_node={"cpu": 2})
    client.train(runtime="torch-distributed", trainer=trainer, options=[Name("job"), lent])
    assert client.wait("job").result == {"sum": 6.0, "processes": 4}


def test_two_jobs_meet_at_the_same_port_at_the_same_time(here):
    client = here.client()
    for name in ("one", "two"):
        client.train(runtime="python", trainer=CustomTrainer(func=meets, num_nodes=2), options=[Name(name)])
    assert [client.wait(name).result["met"] for name in ("one", "two")] == [[1], [1]]


def test_a_deleted_job_leaves_nothing_on_the_engine(here):
    client = here.client()
    train(client, goes_on, num_nodes=2)
    running(client, steps=2)
    client.delete_job("job")
    until(lambda: here.everything() == [], "an empty engine")


def test_containers_of_a_deleted_job_are_kept_if_asked_for_and_the_name_is_free(here):
    client = here.client(auto_remove=False)
    train(client, returns, {"value": 1})
    client.wait("job")
    client.delete_job("job")
    (kept,) = here.engine.containers(here.label)
    assert "job-node-0." in kept["Names"][0]
    train(client, returns, {"value": 2})
    assert client.wait("job").result == 2


def test_volumes_user_and_shared_memory_are_those_of_a_patch(here):
    (here.folder / "data").mkdir()
    (here.folder / "data" / "file.txt").write_text("from this machine")
    here.folder.chmod(0o755)
    volumes = [
        {"name": "data", "hostPath": {"path": str(here.folder / "data")}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    mounts = [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    node = ContainerPatch(name="node", volume_mounts=mounts, security_context={"runAsUser": 1234, "runAsGroup": 99})
    client = here.client()
    train(client, looks_around, options=[patch(volumes=volumes, containers=[node])])
    outcome = client.wait("job")
    assert outcome.result == {
        "user": [1234, 99],
        "shm": 32 * 2**20,
        "data": "from this machine",
        "writable": False,
        "scratch": [],
    }


def test_a_gpu_is_handed_out_or_refused_and_never_passed_over(here):
    if here.engine.product != "podman":
        pytest.skip("Docker hands them out")
    client = here.client()
    with pytest.raises(UnsupportedError, match="Podman passes over the gpu"):
        train(client, resources_per_node={"gpu": 1})
    assert here.everything() == []


def test_an_image_with_a_command_of_its_own_runs(here):
    client = here.client()
    trainer = CustomTrainerContainer(image=container_engine.IMAGE)
    command = TrainerCommand(["python3", "-c", "import os; print(os.environ['RANK'])"])
    client.train(runtime="python", trainer=trainer, options=[Name("job"), command])
    assert client.wait("job").succeeded
    assert list(client.get_job_logs("job")) == ["0"]


def test_a_command_that_is_not_there_is_told(here):
    client = here.client()
    trainer = CustomTrainerContainer(image=container_engine.IMAGE)
    client.train(runtime="python", trainer=trainer, options=[Name("job"), TrainerCommand(["no-such-program"])])
    found = client.wait("job").diagnosis
    assert (found.category, found.exit_code, found.step) == (Category.USER_CODE, 127, "node-0")
    assert "no-such-program" in found.reason


def test_an_image_that_is_not_there_fails_the_job_and_not_the_submitter(here):
    client = here.client(pull_policy="Never")
    train(client, image="localhost/no-such-image:1")
    found = client.wait("job").diagnosis
    assert (found.category, found.retryable) == (Category.IMAGE, False)
    assert "localhost/no-such-image:1 is not there" in found.reason


def test_an_image_that_cannot_be_pulled_fails_the_job(here):
    client = here.client()
    train(client, image="localhost:1/no-such-image:1")
    found = client.wait("job").diagnosis
    assert found.category is Category.IMAGE
    assert "localhost:1/no-such-image:1 cannot be pulled" in found.reason


def test_a_killed_container_is_told_by_its_signal_and_ends_the_others(here):
    client = here.client()
    train(client, goes_on, num_nodes=2)
    steps = running(client, steps=2).steps
    here.engine._api.kill(steps[1].pod_name, signal.SIGKILL)
    found = client.wait("job").diagnosis
    assert (found.category, found.step, found.exit_code) == (Category.INFRASTRUCTURE, "node-1", -9)
    assert (found.node, found.retryable) == (steps[1].pod_name, True)
    until(lambda: [step.status for step in client.get_job("job").steps].count("Running") == 0, "the end of node-0")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_container_that_somebody_removed_fails_the_job(here, nodes):
    client = here.client()
    train(client, goes_on, num_nodes=nodes)
    steps = running(client, steps=nodes).steps
    here.engine.remove(steps[0].pod_name)
    found = client.wait("job").diagnosis
    # Its reason is the removal, or the kill before it where that alone was seen.
    assert (found.category, found.step, found.retryable) == (Category.INFRASTRUCTURE, "node-0", True)


def test_a_container_of_somebody_else_with_a_nodes_name_is_told(here):
    client = here.client()
    name = names.container(client.backend._config.namespace, "job", "node-0", 0)
    labels = {names.NAMESPACE: client.backend._config.namespace}
    here.engine.create(name, {"Image": container_engine.IMAGE, "Cmd": ["true"], "Labels": labels})
    train(client)
    assert f"a container '{name}' is on the engine that is not of this job" in client.wait("job").diagnosis.reason


def test_a_full_volume_fails_the_training_that_fills_it(here):
    volumes = [{"name": "out", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    node = ContainerPatch(name="node", volume_mounts=[{"name": "out", "mountPath": "/out"}])
    client = here.client()
    train(client, fills, options=[patch(volumes=volumes, containers=[node])])
    found = client.wait("job").diagnosis
    assert found.category is Category.USER_CODE
    assert "No space left on device" in found.reason


def fills():
    from pathlib import Path

    Path("/out/model").write_bytes(b"x" * 2**22)


def test_initializers_fetch_before_the_nodes_start(here, fetching):
    client = fetching()
    sources = Initializer(
        dataset=HuggingFaceDatasetInitializer("hf://owner/data", ignore_patterns=["*.bin", "*.pt"]),
        model=HuggingFaceModelInitializer("hf://owner/model"),
    )
    train(client, reads, {"role": "dataset"}, initializer=sources, num_nodes=2)
    outcome = client.wait("job")
    assert outcome.result == {"data.txt": "hf://owner/data", "token.txt": "none"}
    job = client.get_job("job")
    assert [step.name for step in job.steps] == ["dataset-initializer", "model-initializer", "node-0", "node-1"]
    assert max(step.finished for step in job.steps[:2]) <= min(step.started for step in job.steps[2:])
    assert list(client.get_job_logs("job", step="dataset-initializer")) == [
        "fetching hf://owner/data without *.bin,*.pt"
    ]
    client.delete_job("job")
    until(lambda: here.everything() == [], "an empty engine")


def test_credentials_reach_an_initializer_and_nobody_who_inspects(here, fetching):
    secret = "hf_a-secret-token"
    client = fetching()
    source = HuggingFaceDatasetInitializer("hf://owner/data", access_token=secret)
    train(client, reads, {"role": "dataset"}, initializer=Initializer(dataset=source))
    assert client.wait("job").result["token.txt"] == hashlib.sha256(secret.encode()).hexdigest()
    (step, _) = client.get_job("job").steps
    seen = [here.engine.container(step.pod_name), here.engine.containers(here.label), here.engine.volumes(here.label)]
    assert secret not in json.dumps(seen)
    until(lambda: here.engine.read(step.pod_name, "/trainjob-secrets.json") == b"{}", "the end of the credentials")


def test_an_initializer_that_fails_is_told_with_what_it_said_in_whatever_pieces(here, fetching):
    client = fetching()
    source = HuggingFaceDatasetInitializer("hf://owner/fail")
    train(client, initializer=Initializer(dataset=source))
    found = client.wait("job").diagnosis
    assert (found.category, found.step, found.exit_code) == (Category.INITIALIZER, "dataset-initializer", 1)
    assert found.reason == "no such repository"
    assert "fetching hf://owner/fail without None" in found.log_tail


def test_an_initializer_that_takes_too_long_is_ended(here, fetching):
    client = fetching(initializer_timeout=1)
    train(client, initializer=Initializer(dataset=HuggingFaceDatasetInitializer("hf://owner/hang")))
    found = client.wait("job").diagnosis
    assert (found.category, found.step) == (Category.INITIALIZER, "dataset-initializer")
    assert "1 s (initializer_timeout)" in found.reason
    until(lambda: client.get_job("job").steps[0].status != "Running", "the end of the initializer")


def test_what_was_fetched_once_lies_in_a_volume_that_other_jobs_mount(here, fetching):
    client = fetching()
    sources = Initializer(
        dataset=HuggingFaceDatasetInitializer("hf://owner/data"), model=HuggingFaceModelInitializer("hf://owner/model")
    )
    fetched = client.wait(client.initialize(sources, [Name("fetch")]))
    volume = f"{container_engine.namespace(here.folder)}.fetch"
    assert fetched.result == {"dataset": f"pvc://{volume}/dataset", "model": f"pvc://{volume}/model"}
    client.delete_job("fetch")
    source = Initializer(dataset=VolumeDatasetInitializer(fetched.result["dataset"]))
    train(client, reads, {"role": "dataset"}, initializer=source)
    assert client.wait("job").result["data.txt"] == "hf://owner/data"


def test_what_an_image_keeps_is_found_by_the_next_job_whatever_user_its_nodes_have(here, fetching):
    client = fetching()
    fetch = Initializer(dataset=HuggingFaceDatasetInitializer("hf://owner/cached"))
    said, results = [], []
    node = ContainerPatch(name="node", security_context={"runAsUser": 1234})
    for name, options in (("one", []), ("two", [patch(containers=[node])])):
        trainer = CustomTrainer(func=reads, func_args={"role": "dataset"})
        client.train(runtime="python", trainer=trainer, initializer=fetch, options=[Name(name), *options])
        results.append(client.wait(name).result["data.txt"])
        said += list(client.get_job_logs(name, step="dataset-initializer"))[1:]
    assert (said, results) == (["fetched", "found"], ["hf://owner/cached"] * 2)


def test_a_suspended_job_fetches_nothing_twice(here, fetching):
    client = fetching()
    source = HuggingFaceDatasetInitializer("hf://owner/data")
    train(client, goes_on, initializer=Initializer(dataset=source))
    lines = client.get_job_logs("job", follow=True)
    assert next(lines) == "it runs"
    client.suspend("job")
    until(lambda: client.get_job("job").steps[1].status == "Pending", "the end of the node")
    client.resume("job")
    assert next(lines) == "it runs"
    steps = client.get_job("job").steps
    assert [(step.status, step.restarts) for step in steps] == [("Succeeded", 0), ("Running", 1)]


def test_a_linked_folder_cannot_be_written_to(here):
    (here.folder / "data").mkdir()
    client = here.client()
    source = FileDatasetInitializer((here.folder / "data").as_uri(), link=True)
    train(client, writes_into_the_dataset, initializer=Initializer(dataset=source))
    assert "Read-only file system" in client.wait("job").diagnosis.reason


def writes_into_the_dataset():
    from trainer_core import dataset_path

    (dataset_path() / "mine.txt").write_text("mine")


def test_a_log_is_read_on_by_another_client_over_a_resume(here):
    client = here.client()
    ref = client.ref(train(client, prints, {"lines": 20}))
    client.wait(ref)
    place, lines = {}, []
    for _ in range(9):
        tail = here.client().backend.tail(ref, json.loads(json.dumps(place)), whole=True, most=3)
        lines, place = lines + [line for _, line in tail.lines], tail.place
    assert lines == [f"line {number}" for number in range(20)]


def test_a_job_is_deleted_when_its_time_has_come(here):
    client = here.client()
    train(client, options=[DeleteAfter(1)])
    client.wait("job")
    until(lambda: client.backend.reap() == ["job"], "the end of its time")
    assert here.everything() == []


def test_what_a_killed_deleter_left_is_swept(here):
    client = here.client()
    ref = client.ref(train(client))
    client.wait(ref)
    here.engine.remove_volume(names.claim(ref.namespace, "job"))
    assert client.list_jobs() == []
    for each in here.engine.containers(here.label):
        here.engine.remove(each["Id"])
    client.backend.reap()
    assert here.everything() == []


@pytest.mark.filterwarnings("ignore", "error:::airflow_provider", "error:::trainer_core")
def test_a_task_of_airflow_runs_in_a_container(here, run_trainjob_task, monkeypatch):
    from airflow_provider.operators.trainjob import TrainJobOperator

    monkeypatch.setenv("TRAINJOB_HOME", str(here.folder / "home"))
    done = run_trainjob_task(
        TrainJobOperator(
            task_id="train",
            runtime="python",
            trainer=CustomTrainer(func=returns, func_args={"value": {"accuracy": 0.5}}),
            backend_config=container_engine.config(here.folder),
        )
    )
    assert (done.state, done.returned) == ("success", {"accuracy": 0.5})
    (job,) = here.client().list_jobs()
    assert job.status == "Complete"
