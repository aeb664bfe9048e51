"""Checkpoints on s3://: complete or absent, whatever breaks. The storage is a moto server on the loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from aiohttp import web
from checkpoint_chaos import REQUESTS, Chaos
from s3_storage import serving
from s3_storage.faults import Fault, cut, lose_answer, reset, says, spoil

from airflow_provider.operators.trainjob import TrainJobOperator
from airflow_provider.testing.tasks import StandInTaskInstance
from trainer_core import Checkpoints, CustomTrainer, LocalProcessBackendConfig, Owner, TrainerClient
from trainer_core.cli import main
from trainer_core.node import checkpoint_folder, checkpoint_s3, env, progress, s3_client
from trainer_core.node.checkpoint_folder import StorageError
from trainer_core.node.checkpoints import CheckpointError, CheckpointStore, finish
from trainer_core.packaging import serializer

SECRET = "a-secret-key"
SCOPE = "place/train-0123456789/g-0"
ROLE = "arn:aws:iam::123456789012:role/trainer"

#: Each rank saves its own file, and stops where all ranks stop.
TRAINING = """
import sys, time
from trainer_core import checkpoints

store = checkpoints()
last = store.latest()
print("from", last.step if last else 0, sorted(p.name for p in last.path.iterdir()) if last else [], flush=True)
for step in range((last.step if last else 0) + 1, int(sys.argv[1]) + 1):
    time.sleep(0.01)
    if store.due(step):
        with store.save(step) as folder:
            (folder / f"rank-{store.rank}.txt").write_text(str(step))
        print("saved", step, flush=True)
print("done", flush=True)
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path, proxy):
    """A machine whose environment has the endpoint and the credentials of the storage, and nothing else of AWS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "AKIAMADEUP",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "TMPDIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(s3_client, "_FIRST_DELAY", 0.001)
    yield monkeypatch
    progress.reset()


@pytest.fixture
def start_store(machine, bucket):
    """Start one training after the other, each with settings of the option."""

    def start(scope=SCOPE, **settings):
        machine.setenv(env.CHECKPOINT_PATH, f"s3://{bucket.name}/{scope}")
        machine.setenv(env.CHECKPOINTS, json.dumps({"grace": 0, **settings}))
        return CheckpointStore()

    return start


@pytest.fixture
def list_keys(moto, bucket):
    def list_keys(prefix=SCOPE):
        found = moto[1].list_objects_v2(Bucket=bucket.name, Prefix=prefix).get("Contents", [])
        return [each["Key"].removeprefix(f"{prefix}/") for each in found]

    return list_keys


@pytest.fixture
def start_rank(bucket, tmp_path):
    """Start the training as a process of the bare kit."""
    shipped, processes = tmp_path / "shipped", []
    serializer.ship(shipped)

    def start(rank=0, world=1, steps=100_000, **settings):
        variables = {
            "PYTHONPATH": str(shipped),
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            env.CHECKPOINT_PATH: f"s3://{bucket.name}/{SCOPE}",
            env.CHECKPOINTS: json.dumps({"grace": 120, **settings}),
        }
        log = tmp_path / f"rank-{len(processes)}.log"
        aws = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "TMPDIR"))}
        with log.open("wb") as file:
            command = [sys.executable, "-S", "-c", TRAINING, str(steps)]
            process = subprocess.Popen(command, env={**variables, **aws}, cwd=tmp_path, stdout=file, stderr=file)
        process.log = log
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def save(store, *steps, **losses):
    for step in steps:
        with store.save(step, {"loss": losses.get(f"at_{step}", 1.0)}) as folder:
            (folder / "sub").mkdir()
            (folder / "sub" / "a state.txt").write_text(f"state of {step}")


def list_steps(store):
    return [each.step for each in store.all()]


def read_state(store):
    return (store.latest().path / "sub" / "a state.txt").read_text()


def list_puts(proxy):
    return [path.partition(f"{SCOPE}/")[2] for method, path, _ in proxy.seen if method == "PUT"]


def end(process, code):
    assert process.wait(600) == code, process.log.read_text()
    return process.log.read_text()


def test_the_next_start_finds_what_was_saved(start_store):
    store = start_store(keep=2, keep_best="loss")
    assert store.latest() is None
    save(store, 1, 2, 3, 4, at_2=0.1)

    again = start_store()

    assert (list_steps(again), again.latest().metrics, read_state(again)) == ([2, 3, 4], {"loss": 1.0}, "state of 4")


def test_the_manifest_is_written_after_all_files(start_store, proxy):
    store = start_store()
    proxy.seen.clear()
    save(store, 3)
    data, manifest = list_puts(proxy)
    assert data.endswith("/sub/a state.txt")
    assert manifest == "step-000000000003/manifest.json"


def test_what_a_killed_start_left_is_no_checkpoint_and_is_swept(start_store, bucket, list_keys, moto):
    save(start_store(), 3)
    kept = list_keys()
    bucket(f"{SCOPE}/step-000000000007/.part-000000000007-0-1/state.txt", b"7")
    bucket(f"{SCOPE}/step-000000000003/.part-000000000003-0-1/state.txt", b"3")
    bucket(f"{SCOPE}/.part-000000000007-0-1/.done-1", b"{}")
    moto[1].create_multipart_upload(Bucket=bucket.name, Key=f"{SCOPE}/step-000000000007/large")

    assert start_store().latest().step == 3
    assert list_keys() == kept
    assert "Uploads" not in moto[1].list_multipart_uploads(Bucket=bucket.name)


def test_a_checkpoint_without_an_object_is_passed_over_for_the_one_before(start_store, list_keys, moto, bucket, capsys):
    save(start_store(), 3, 7)
    (state,) = [key for key in list_keys() if key.startswith("step-000000000007/.part")]
    moto[1].delete_object(Bucket=bucket.name, Key=f"{SCOPE}/{state}")

    assert start_store().latest().step == 3
    assert "step-000000000007 is damaged and passed over: sub/a state.txt has changed" in capsys.readouterr().out
    save(start_store(), 7)
    assert read_state(start_store()) == "state of 7"


def test_the_objects_of_a_damaged_checkpoint_stay(start_store, bucket, list_keys):
    save(start_store(), 3, 7)
    objects = [key for key in list_keys("") if "step-000000000007/.part" in key]
    bucket(f"{SCOPE}/step-000000000007/manifest.json", b"{")

    save(start_store(keep=1), 7, 8, 9)
    start_store()

    assert {*objects} <= {*list_keys("")}


@pytest.mark.parametrize("name", ["../../outside", "/outside"])
def test_a_manifest_that_names_files_outside_its_folder_is_passed_over(start_store, bucket, list_keys, name):
    part = ".part-000000000003-0-1"
    manifest = {"step": 3, "metrics": {}, "world_size": 1, "job": "", "part": part, "files": {name: [1, 0]}}
    bucket(f"{SCOPE}/step-000000000003/{part}/{name}", b"x")
    bucket(f"{SCOPE}/step-000000000003/manifest.json", json.dumps(checkpoint_folder.seal(manifest)).encode())

    assert start_store().latest() is None


def test_what_a_node_has_fetched_stays_until_its_last_rank_ends(start_store, tmp_path):
    save(start_store(), 3)
    first, last = start_store(), start_store()
    assert {read_state(rank) for rank in (first, last)} == {"state of 3"}
    first._place.close()
    assert len(list(tmp_path.glob("trainjob-checkpoints-*/step-*"))) == 1
    last._place.close()
    assert not list(tmp_path.glob("trainjob-checkpoints-*/step-*"))


def test_a_checkpoint_is_read_again_before_it_counts_as_damaged_and_the_next_attempt_has_the_one_before(
    start_store, proxy
):
    save(start_store(), 3, 7)
    proxy.faults.append(Fault(spoil, "/a state.txt", left=1))
    assert read_state(start_store()) == "state of 7"
    store = start_store()
    store._place.forget_fetched()
    proxy.faults.append(Fault(spoil, "/a state.txt", left=2))
    with pytest.raises(CheckpointError, match=r"step-000000000007 is damaged: sub/a state.txt has changed; try again"):
        read_state(store)

    assert read_state(start_store()) == "state of 3"


@pytest.mark.parametrize(
    "fault",
    [says(500, "InternalError"), says(503, "SlowDown"), lose_answer, cut(503)],
    ids=["500", "SlowDown", "broken", "cut"],
)
@pytest.mark.parametrize(
    "key", ["manifest.json", "/a state.txt", "start.json", ""], ids=["manifest", "file", "start", "list"]
)
def test_a_request_that_fails_twice_is_repeated(start_store, proxy, fault, key):
    proxy.faults.append(Fault(fault, key, left=2))
    save(start_store(), 3)
    proxy.faults.append(Fault(reset(after=5), "/a state.txt", left=2))
    assert read_state(start_store()) == "state of 3"


def test_a_large_file_is_uploaded_in_parts_and_fetched_in_pieces(start_store, proxy, machine):
    # S3 accepts no smaller parts.
    machine.setattr(s3_client, "_PIECE", 5 * 2**20)
    data = os.urandom(11 * 2**20)
    proxy.faults += [Fault(lose_answer, "/large", left=2)]
    with start_store().save(3) as folder:
        (folder / "large").write_bytes(data)
    proxy.faults += [Fault(reset(after=2**20), "/large", left=2)]

    assert (start_store().latest().path / "large").read_bytes() == data


def test_storage_that_stays_away_fails_the_save_in_one_line(start_store, proxy, machine):
    machine.setattr(s3_client, "_ATTEMPTS", 2)
    store = start_store()
    save(store, 3)
    proxy.faults.append(Fault(says(503, "SlowDown"), "/a state.txt"))
    with pytest.raises(StorageError, match=r"step 4 was not saved in s3://.*: 503 SlowDown") as failed:
        save(store, 4)
    assert "\n" not in str(failed.value)
    proxy.faults.clear()
    assert (start_store().latest().step, list_steps(store)) == (3, [3])


def test_an_attempt_that_was_replaced_saves_nothing(start_store):
    old = start_store()
    save(start_store(), 3)
    with pytest.raises(CheckpointError, match="a newer attempt of this job has started"):
        save(old, 4)
    assert list_steps(old) == [3]


def test_what_to_load_from_a_bucket(start_store, bucket):
    save(start_store(), 3)
    owner, warm = f"s3://{bucket.name}/place/train-0123456789", f"s3://{bucket.name}/warm/g-0/step-000000000009"
    save(start_store(scope="warm/g-0"), 9)
    other = "place/train-0123456789/g-1"

    assert start_store(other, load="owner", load_paths=[owner]).latest().step == 3
    store = start_store(other, load=warm, load_paths=[warm])
    assert read_state(store) == "state of 9"
    save(store, 4)
    assert start_store(other, load=warm, load_paths=[warm]).latest().step == 4
    with pytest.raises(CheckpointError, match="no complete checkpoint in s3://"):
        start_store(f"{other}0", load="s3://x", load_paths=[f"s3://{bucket.name}/nothing"])


@pytest.mark.parametrize(("after", "kept"), [("none", []), ("last", [4]), ("all", [3, 4])])
def test_what_a_complete_training_leaves_in_a_bucket(start_store, after, kept, tmp_path, list_keys):
    store = start_store(after=after)
    save(store, 3, 4)
    read_state(store)
    finish(store)

    assert sorted({int(key[5:17]) for key in list_keys() if key.startswith("step-")}) == kept
    assert (list_keys() == []) == (after == "none")
    assert not list(tmp_path.glob("trainjob-checkpoints-*/step-*"))


def test_checkpoints_in_a_bucket_are_deleted_when_their_time_is_over(start_store, bucket, list_keys, machine):
    old = start_store("place/old/g-0", ttl=1, after="all")
    save(old, 3)
    finish(old)  # What still runs does not expire.
    save(start_store("place/young/g-0", ttl=3600), 3)
    save(start_store("place/kept/g-1", ttl=0), 3)
    bucket("place/data/set", b"of others")
    later = time.time() + 60

    with machine.context() as ahead:
        # The clock of this machine does not count.
        ahead.setattr(time, "time", lambda: later + 86_400)
        assert checkpoint_s3.remove_expired(f"s3://{bucket.name}/place/young") == []
    removed = checkpoint_s3.remove_expired(f"s3://{bucket.name}/place", now=later)

    assert removed == [f"s3://{bucket.name}/place/old/g-0"]
    assert {key.partition("/")[0] for key in list_keys("place")} == {"young", "kept", "data"}
    assert checkpoint_s3.remove_expired(f"s3://{bucket.name}", now=later) == []


def test_two_ranks_save_one_checkpoint_and_stop_at_the_same_step(start_rank, start_store):
    ranks = [start_rank(rank, 2, every_seconds=1e-9) for rank in range(2)]
    while not all("saved" in rank.log.read_text() for rank in ranks):
        assert all(rank.poll() is None for rank in ranks)
        time.sleep(0.02)
    # Only one rank hears the signal.
    ranks[1].send_signal(signal.SIGTERM)
    for rank in ranks:
        end(rank, 143)

    last = start_store().latest()
    assert {path.name: path.read_text() for path in last.path.iterdir()} == {
        f"rank-{n}.txt": str(last.step) for n in range(2)
    }
    again = [start_rank(rank, 2, steps=last.step) for rank in range(2)]
    for rank in again:
        assert f"from {last.step} ['rank-0.txt', 'rank-1.txt']\ndone" in end(rank, 0)


@pytest.mark.parametrize(("key", "complete"), [("/rank-0.txt", 3), ("000000000005/manifest.json", 5)])
def test_a_kill_during_an_upload_leaves_a_complete_checkpoint(
    start_rank, start_store, proxy, key, complete, list_keys, tmp_path
):
    """The storage carries the request out after the kill: a manifest completes its checkpoint, a file does not."""
    save(start_store(), 3)
    at, until, done = threading.Event(), threading.Event(), threading.Event()

    async def hold(proxy, request):
        await request.read()
        at.set()
        await asyncio.to_thread(until.wait, 600)
        answer = await proxy.forward(request)
        done.set()
        return answer

    proxy.faults.append(Fault(hold, key, left=1))
    process = start_rank(steps=5, every_steps=5)
    assert at.wait(600)
    process.kill()
    process.wait()
    until.set()
    assert done.wait(600)

    again = start_rank(steps=5, every_steps=5)
    assert f"from {complete} " in end(again, 0)
    assert {key[:17] for key in list_keys()} == {"start.json", "step-000000000003", "step-000000000005"}
    assert not list(tmp_path.glob("trainjob-checkpoints-*/.part*"))


@dataclass
class EveryThirteenth(Fault):
    """Happens to each thirteenth request that is no listing."""

    def hits(self, request):
        self.left += "list-type" not in request.query
        return self.left % 13 == 0


@pytest.mark.deep
def test_a_kill_at_any_request_of_a_save_loses_at_most_the_step_of_that_save(
    bucket, tmp_path, list_keys, start_store, proxy
):
    """Each thirteenth request also loses its answer: the storage has carried it out, and the client repeats it."""
    proxy.faults.append(EveryThirteenth(lose_answer, "", left=0))
    undisturbed = Chaos(tmp_path, str(tmp_path / "base" / "train" / "g-0")).run(40)[1][-1]
    chaos = Chaos(tmp_path, f"s3://{bucket.name}/{SCOPE}", REQUESTS)
    begun, event, code = 0, 0, -signal.SIGKILL
    while code:
        event += 1
        code, lines = chaos.run(40, event, signal.SIGKILL)
        assert begun <= int(lines[0].split()[1]) <= begun + 1, lines
        begun = int(lines[1].split()[1])
    assert event > 5

    assert chaos.run(40)[1][-1] == undisturbed
    assert start_store().latest().step == 40
    assert {key.partition("/")[0] for key in list_keys()} == {"start.json", "step-000000000040"}


# ---- credentials -------------------------------------------------------------------------------------------------


def list_signers(proxy):
    signed = [headers.get("Authorization", "") for _, _, headers in proxy.seen]
    return {text.partition("Credential=")[2].partition("/")[0] for text in signed if text}


def test_without_credentials_the_training_does_not_begin(start_store, machine):
    machine.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(CheckpointError, match="credentials cannot be read: Partial credentials found in env"):
        start_store()
    machine.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(CheckpointError, match="no credentials; set AWS_ACCESS_KEY_ID and"):
        start_store()


def test_a_service_account_has_a_role(start_store, machine, proxy, tmp_path):
    machine.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / "token").write_text("a-token-of-the-pod\n")
    machine.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    machine.setenv("AWS_ROLE_ARN", ROLE)
    save(start_store(), 3)
    (signer,) = list_signers(proxy)
    assert signer.startswith("ASIA")


def test_a_pod_identity_has_credentials(start_store, machine, proxy, tmp_path):
    machine.delenv("AWS_ACCESS_KEY_ID")
    keys = {"AccessKeyId": "AKIAPOD", "SecretAccessKey": SECRET, "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}

    async def give_credentials(request):
        if request.headers["Authorization"] != "a-token-of-the-pod":
            raise web.HTTPForbidden
        return web.json_response(keys)

    app = web.Application()
    app.router.add_get("/credentials", give_credentials)
    (tmp_path / "token").write_text("a-token-of-the-pod")
    machine.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    with serving.served(app) as url:
        machine.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/credentials")
        save(start_store(), 3)
    assert list_signers(proxy) == {"AKIAPOD"}


def test_credentials_that_expire_are_renewed(start_store, machine, proxy, tmp_path):
    machine.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / "token").write_text("a-token-of-the-pod")
    machine.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    machine.setenv("AWS_ROLE_ARN", ROLE)
    store = start_store()
    proxy.faults.append(Fault(says(400, "ExpiredToken"), "/a state.txt", left=1))
    save(store, 3)
    assert len(list_signers(proxy)) == 2


@dataclass
class WithoutBody(Fault):
    """Happens to requests for the head of an object, whose answers have no body."""

    def hits(self, request):
        is_head = request.method == "HEAD" and self.left > 0
        self.left -= is_head
        return is_head


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestTimeout"])
def test_a_refusal_without_a_reason_is_asked_for_again_with_one(machine, proxy, tmp_path, code):
    machine.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / "token").write_text("a-token-of-the-pod")
    machine.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    machine.setenv("AWS_ROLE_ARN", ROLE)
    storage, url = s3_client.Bucket("any"), "/akey"
    proxy.faults += [WithoutBody(says(400, ""), left=1), Fault(says(400, code), url, left=1)]
    assert storage.exists("akey") is False
    assert proxy.gets(url) == 2
    assert len(list_signers(proxy)) == 1 + (code == "ExpiredToken")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AccessDenied", "the credentials need s3:ListBucket"),
        ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY does not"),
    ],
)
def test_storage_that_refuses_says_why_and_shows_no_secret(start_store, proxy, code, message):
    proxy.faults.append(Fault(says(403, code), ""))
    with pytest.raises(CheckpointError, match=message) as failed:
        start_store()
    assert failed.type is CheckpointError
    assert SECRET not in str(failed.value)


# ---- a job -------------------------------------------------------------------------------------------------------


def train(steps, fail_at):
    from trainer_core import checkpoints, progress

    store = checkpoints()
    begun = int((store.latest().path / "state").read_text()) if store.latest() else 0
    for step in range(begun + 1, steps + 1):
        if step == fail_at:
            raise RuntimeError("the node is gone")
        progress(step=step, total=steps)
        if store.due(step):
            with store.save(step) as folder:
                (folder / "state").write_text(str(step))
    return begun


def test_a_retried_job_resumes_from_a_bucket_and_no_secret_is_stored(bucket, tmp_path):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))
    option = Checkpoints(f"s3://{bucket.name}/runs", every_steps=1, after="all")
    outcomes = []
    for fail_at in (3, 0):
        trainer = CustomTrainer(func=train, func_args={"steps": 4, "fail_at": fail_at})
        owner = Owner(key="owner", slug="train", generation="0")
        request = client.build_request(runtime="python", trainer=trainer, options=[option], owner=owner)
        outcomes.append(client.wait(client.submit(request)))

    assert [(each.status, each.checkpoint, each.resumed_from) for each in outcomes] == [
        ("Failed", 2, None),
        ("Complete", 4, 2),
    ]
    assert outcomes[1].result == 2
    name = outcomes[1].ref["name"]
    listed = client.list_checkpoints(name)
    assert [(each.step, each.newest, each.loaded) for each in listed] == [
        (2, False, True),
        (3, False, False),
        (4, True, False),
    ]
    assert listed[2].uri.startswith(f"s3://{bucket.name}/runs/train-")
    assert (listed[2].size, listed[2].job) == (1, name)
    stored = [path.read_bytes() for path in Path(tmp_path, "home").rglob("*") if path.is_file()]
    assert {SECRET.encode() in each for each in stored} == {False}


def test_a_failed_job_is_debugged_from_a_checkpoint_in_a_bucket_which_stays_as_it_is(bucket, list_keys, tmp_path):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))
    trainer = CustomTrainer(func=train, func_args={"steps": 4, "fail_at": 4})
    option = Checkpoints(f"s3://{bucket.name}/runs", every_steps=1)
    name = client.train(runtime="python", trainer=trainer, options=[option])
    client.wait(name)
    before = list_keys("runs")

    results = [client.debug(name, pdb=False, from_checkpoint=step) for step in (True, 2)]

    assert [(each.same_error, each.outcome.resumed_from) for each in results] == [(True, 3), (True, 2)]
    assert list_keys("runs") == before
    assert not list(tmp_path.glob("trainjob-*/step-*"))


def read_process_list(secret_name):
    """Save a checkpoint; return whether a process of this machine has the secret in its arguments."""
    import os
    from contextlib import suppress
    from pathlib import Path

    from trainer_core import checkpoints

    with checkpoints().save(1) as folder:
        (folder / "state").write_text("1")
    arguments = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # A process that has ended.
            arguments.append(path.read_bytes())
    secret = os.environ[secret_name].encode()
    return {"processes": len(arguments), "with_secret": sum(secret in each for each in arguments)}


def test_no_secret_of_the_bucket_is_in_a_process_list_an_xcom_or_the_log_of_an_airflow_task(
    bucket, machine, trainjob_home, capfd, caplog
):
    secret = uuid4().hex  # Of this test alone: other processes of this machine have the one of the other tests.
    machine.setenv("AWS_SECRET_ACCESS_KEY", secret)
    task = TrainJobOperator(
        task_id="train",
        backend="local",
        runtime="python",
        trainer=CustomTrainer(func=read_process_list, func_args={"secret_name": "AWS_SECRET_ACCESS_KEY"}),
        options=[Checkpoints(f"s3://{bucket.name}/runs")],
    )
    ti = StandInTaskInstance()
    result = task.execute({"ti": ti})

    assert result["with_secret"] == 0
    assert result["processes"] > 1
    assert ti.xcoms["checkpoint"] == 1
    shown = [json.dumps(ti.xcoms, default=str), caplog.text, *capfd.readouterr()]
    assert "train" in "".join(shown)
    assert not any(secret in each for each in shown)


def test_doctor_tries_the_bucket_and_leaves_nothing_in_it(bucket, list_keys, proxy, capsys, tmp_path):
    code = main(["--home", str(tmp_path), "doctor", "--checkpoints", f"s3://{bucket.name}/place/train", "-o", "json"])

    check = json.loads(capsys.readouterr().out)["checks"][-1]
    assert (code, check["what"], check["state"], check["found"]) == (
        0,
        "checkpoints",
        "ok",
        f"s3://{bucket.name}/place/train",
    )
    assert len(list_puts(proxy)) == 1
    assert list_keys("") == []


@pytest.mark.parametrize(
    ("environ", "found"),
    [({"AWS_ACCESS_KEY_ID": ""}, "no credentials"), ({}, "NoSuchBucket; the bucket does not exist")],
)
def test_doctor_says_why_a_bucket_cannot_be_used(machine, capsys, tmp_path, environ, found):
    for name, value in environ.items():
        machine.setenv(name, value)
    code = main(["--home", str(tmp_path), "doctor", "--checkpoints", "s3://no-such-bucket/place", "-o", "json"])

    check = json.loads(capsys.readouterr().out)["checks"][-1]
    assert (code, check["state"]) == (0, "limited")
    assert found in check["found"]
