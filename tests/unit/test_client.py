"""TrainerClient: each method takes a name or a ref; concurrent submitters and deleters."""

from __future__ import annotations

import re

import pytest
from mlflow_double import serve_mlflow
from patient_tracking import be_patient

from trainer_core import (
    CustomTrainer,
    DebugBackendConfig,
    FileDatasetInitializer,
    Initializer,
    LocalProcessBackendConfig,
    Name,
    Tracking,
    TrainerClient,
)
from trainer_core.backends.debug import DebugBackend
from trainer_core.base.errors import JobNotFoundError, UnsupportedError
from trainer_core.model.jobs import OwnerReference
from trainer_core.model.request import TrainJobRequest

CODE = {"kind": "source", "text": "def train():\n    return 1\n", "entry": "train"}
REQUEST = TrainJobRequest.parse(
    {"name": "job", "runtime": {"name": "python"}, "trainer": {"kind": "custom", "code": CODE}}
)
WORKFLOW = OwnerReference("argoproj.io/v1alpha1", "Workflow", "run", "uid")


def train() -> int:
    print("hello")
    return 1


def report() -> int:
    from trainer_core import progress

    print("begins", end=" ")
    progress(step=1, total=4, metrics={"loss": 0.5})
    print("ends")
    return 1


@pytest.fixture
def client() -> TrainerClient:
    return TrainerClient(DebugBackendConfig())


@pytest.fixture
def ref(client):
    return client.get_job_ref(client.train(runtime="python", trainer=CustomTrainer(train), options=[Name("job")]))


@pytest.fixture
def replaced(client, ref):
    """The ref of a TrainJob that was deleted, while another one has its name."""
    client.delete_job(ref)
    client.train(runtime="python", trainer=CustomTrainer(train), options=[Name("job")])
    return ref


READS = {
    "get_job": lambda client, job: client.get_job(job),
    "get_job_ref": lambda client, job: client.get_job_ref(job),
    "get_job_request": lambda client, job: client.get_job_request(job),
    "get_job_logs": lambda client, job: list(client.get_job_logs(job)),
    "tail_job_logs": lambda client, job: client.tail_job_logs(job, job_ended=True),
    "get_job_events": lambda client, job: client.get_job_events(job),
    "get_job_outcome": lambda client, job: client.get_job_outcome(job),
    "observe": lambda client, job: client.observe(job),
    "wait": lambda client, job: client.wait(job),
    "wait_for_job_status": lambda client, job: client.wait_for_job_status(job),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_job_is_read_by_its_name_or_its_ref(client, ref, read):
    assert read(client, "job") == read(client, ref)


@pytest.mark.parametrize("key", ["\ud800", "a\nb", "a\x7f"])
def test_the_jobs_of_a_partition_that_none_can_have_are_not_asked_for(client, key):
    message = f"partition must be a string of 1 to 250 characters, not only blanks and without control .*got {key!r}"
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        client.list_jobs(partition=key)


@pytest.mark.parametrize(("key", "warnings"), [("emea", 0), (None, 0), ("us", 1)])
def test_a_job_of_one_partition_is_not_promoted_for_another_without_a_warning(client, tmp_path, caplog, key, warnings):
    code = {**CODE, "text": "def train():\n    return {'accuracy': 0.5, 'artifacts': {'model': 's3://models/a'}}\n"}
    trainer = {"kind": "custom", "code": code}
    request = {"name": "job", "runtime": {"name": "python"}, "trainer": trainer, "partition": "emea"}
    ref = client.submit(TrainJobRequest.parse(request))
    client.wait(ref)

    client.promote(ref, model="sales", metric="accuracy", partition=key, registry=str(tmp_path))

    said = [each for each in caplog.messages if "partition" in each]
    assert len(said) == warnings
    assert all("'job' of partition 'emea' is promoted for partition 'us'" in each for each in said)


@pytest.mark.parametrize(("verb", "left"), [("cancel", 1), ("suspend", 1), ("resume", 1), ("delete_job", 0)])
def test_a_job_is_changed_by_its_name_or_its_ref(client, ref, verb, left):
    getattr(client, verb)("job")
    assert len(client.list_jobs()) == left
    getattr(client, verb)(ref)
    assert len(client.list_jobs()) == left


@pytest.mark.parametrize(
    "read", [READS[name] for name in READS if name not in ("get_job_ref", "wait", "get_job_outcome")]
)
def test_a_ref_does_not_read_another_job_of_the_same_name(client, replaced, read):
    with pytest.raises(JobNotFoundError, match="'job'"):
        read(client, replaced)


def test_a_ref_does_not_delete_another_job_of_the_same_name(client, replaced):
    client.delete_job(replaced)

    assert client.get_job("job").uid != replaced.uid


@pytest.mark.parametrize(("config", "warnings"), [(DebugBackendConfig(), 0), (LocalProcessBackendConfig(), 1)])
def test_a_module_beside_the_function_is_missing_in_another_process(
    tmp_path, monkeypatch, caplog, request, config, warnings
):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    (tmp_path / "beside.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    client = TrainerClient(config)
    code = {**CODE, "text": "def train():\n    import beside\n"}
    data = {**REQUEST.to_dict(), "trainer": {"kind": "custom", "code": code}}
    ref = client.submit(TrainJobRequest.parse(data))
    request.addfinalizer(lambda: client.delete_job(ref))
    assert ["imports beside, which does not travel" in each for each in caplog.messages] == [True] * warnings


def test_a_log_is_read_on_from_a_cursor(client, ref):
    first = client.tail_job_logs(ref, job_ended=True)

    assert first.lines == [("node-0", "hello")]
    assert client.tail_job_logs(ref, first.cursor, job_ended=True).lines == []


@pytest.mark.parametrize("cursor", ["node-0", 5, [1]])
def test_a_cursor_that_is_not_of_a_chunk_is_refused(client, ref, cursor):
    with pytest.raises(ValueError, match=r"^cursor must be a dict such as the cursor of a LogChunk, got "):
        client.tail_job_logs(ref, cursor)


@pytest.mark.parametrize("timeout", ["5", None, -1, float("nan"), float("inf"), True])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(client, timeout):
    with pytest.raises(ValueError, match=r"^timeout must be a number of seconds, at least 0, got "):
        client.flush_tracking(timeout)


def test_packages_are_listed_without_being_printed(client, capsys):
    packages = client.list_runtime_packages(client.get_runtime("python"))

    assert capsys.readouterr().out == ""
    assert client.get_runtime_packages(client.get_runtime("python")) == packages
    assert capsys.readouterr().out.splitlines() == packages


def test_an_owner_reference_needs_a_backend_on_kubernetes(client, ref):
    assert client.get_pod("pod", "uid") is None
    with pytest.raises(UnsupportedError, match="'job' cannot have an ownerReference: the debug backend"):
        client.set_job_owner(ref, "Workflow", WORKFLOW)


class DeletingBackend(DebugBackend):
    """Deletes the job once, after a submit has found it and before it attaches to it."""

    deletions = 1

    def get_ref(self, name):
        if self.deletions:
            self.deletions -= 1
            self.delete(super().get_ref(name))
        return super().get_ref(name)


def test_a_job_that_is_deleted_during_a_submit_is_created_again():
    backend = DeletingBackend()
    first = DebugBackend.submit(backend, REQUEST)

    second = backend.submit(REQUEST)

    assert second.name == first.name
    assert second.uid != first.uid
    with pytest.raises(JobNotFoundError):
        backend.observe(first)


def fit():
    from trainer_core import progress

    progress(step=1, metrics={"loss": 0.5})


def test_a_wait_reports_a_job_that_another_client_submitted_with_an_option_for_tracking(tmp_path, monkeypatch):
    be_patient(monkeypatch)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = LocalProcessBackendConfig(home=tmp_path)
    with serve_mlflow() as mlflow:
        submitter = TrainerClient(config)
        option = Tracking(uri=f"http://127.0.0.1:{mlflow.port}")
        name = submitter.train(runtime="python", trainer=CustomTrainer(func=fit), options=[option])
        TrainerClient(config).wait(name)
        assert (mlflow.status, [value for _, value, _ in mlflow.metrics["loss"]]) == ("FINISHED", [0.5])


def test_the_debug_backend_prints_progress_as_text_and_keeps_it_as_json_in_the_log(client, capsys):
    name = client.train(runtime="python", trainer=CustomTrainer(report))
    assert capsys.readouterr().out == "begins progress 25% (1/4) loss=0.5\nends\n"
    assert "[trainjob:progress] {" in "\n".join(client.backend.logs(client.get_job_ref(name), "node-0"))


def test_the_debug_backend_prints_the_progress_of_data_as_text(client, capsys, tmp_path):
    (tmp_path / "a b#c?%41é{x}").write_text("1")
    client.initialize(Initializer(dataset=FileDatasetInitializer(tmp_path.as_uri())))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("progress", "[trainjob"))] == [
        "progress 100% (0.001/0.001) files=1"
    ]
