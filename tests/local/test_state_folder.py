"""The state folder: its location and permissions, and what a job inherits from its submitter."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from local_jobs import returns, returns_setting, waits_at

from trainer_core import (
    BackendUnavailableError,
    CustomTrainer,
    FileDatasetInitializer,
    Initializer,
    InvalidRequestError,
    LocalProcessBackendConfig,
    SecretRef,
    TrainerClient,
    TrainJobRef,
    UnsupportedError,
)
from trainer_core.backends.local import job_store
from trainer_core.backends.local.job_store import StateFolder
from trainer_core.node import locks
from trainer_core.packaging import serializer

ODD = "mit Leerzeichen, 'Zitat' & $HOME ü 日本 %20"


def reads_and_writes(name: str):
    from trainer_core import dataset_path, output_path

    (output_path() / name).write_text("written")
    return [path.read_text() for path in dataset_path().iterdir()]


def writes_a_note(path: str):
    from pathlib import Path

    Path(path).write_text("note")


@pytest.mark.parametrize(
    "runtime",
    [
        "python",
        pytest.param("torch-distributed", marks=pytest.mark.skipif(not find_spec("torch"), reason="needs torch")),
    ],
)
def test_a_state_folder_with_spaces_and_unicode_works(tmp_path, runtime):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / ODD))
    source = tmp_path / f"{ODD}.csv"
    source.write_text("1,2")
    name = client.train(
        runtime=runtime,
        initializer=Initializer(dataset=FileDatasetInitializer(source.as_uri())),
        trainer=CustomTrainer(func=reads_and_writes, func_args={"name": ODD}, env={"ODD": ODD}),
    )
    assert client.wait(name).result == ["1,2"]
    assert (tmp_path / ODD / "jobs" / name / "workspace" / "output" / ODD).read_text() == "written"
    assert [job.name for job in client.list_jobs()] == [name]
    client.delete_job(name)
    assert client.list_jobs() == []


def test_other_users_cannot_read_the_state_folder(client, ask, home, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    source = tmp_path / "data"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "digits.csv").write_text("1,2")
    before = os.umask(0)
    try:
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        client.wait(client.submit(ask(initializer=fetch, env={"TOKEN": "secret"})))
    finally:
        os.umask(before)
    # Once the supervisor has ended, no file is renamed.
    os.close(locks.acquire(StateFolder(home).job_folder("job").lock, 60))
    everything = [home, *(path for path in home.rglob("*") if not path.is_symlink())]
    # Python creates its bytecode cache with the umask of the job.
    ours = [path for path in everything if "__pycache__" not in path.parts]
    modes = {str(path.relative_to(home.parent)): stat.S_IMODE(path.stat().st_mode) for path in ours}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_a_job_writes_outside_the_state_folder_with_the_umask_of_the_submitter(client, ask, tmp_path):
    before = os.umask(0o027)
    try:
        client.wait(client.submit(ask(writes_a_note, {"path": str(tmp_path / "note")})))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "note").stat().st_mode) == 0o640


def test_process_arguments_contain_neither_code_nor_environment_values(client, running, gate):
    # A word that no process of another test shows.
    secret = f"secret-{uuid4().hex}"
    running(waits_at, {"gate": gate}, env={"TOKEN": secret})
    shown = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in shown if secret in line or gate in line] == []


def test_a_job_inherits_the_environment_of_its_submitter(client, ask, monkeypatch):
    monkeypatch.setenv("GREETING", "hello")
    assert client.wait(client.submit(ask(returns_setting, {"name": "GREETING"}))).result == "hello"


def test_trainer_env_takes_precedence_over_the_environment_of_the_submitter(client, ask, monkeypatch):
    monkeypatch.setenv("GREETING", "hello")
    request = ask(returns_setting, {"name": "GREETING"}, env={"GREETING": "good morning"})
    assert client.wait(client.submit(request)).result == "good morning"


def test_a_secret_of_the_trainer_has_its_value_from_the_environment_of_the_submitter(client, ask, monkeypatch):
    request = ask(returns_setting, {"name": "TOKEN"}, env={"TOKEN": SecretRef("hub", "token")})
    with pytest.raises(UnsupportedError, match=r"trainer.env.TOKEN refers to the Secret 'hub', .* set TOKEN in"):
        client.submit(request)
    monkeypatch.setenv("TOKEN", "word")
    assert client.wait(client.submit(request)).result == "word"


def test_variables_that_the_launcher_sets_are_refused_in_trainer_env(client, ask):
    with pytest.raises(InvalidRequestError, match="PET_NNODES"):
        client.submit(ask(env={"PET_NNODES": "5"}))
    assert client.list_jobs() == []


def test_modules_in_the_working_directory_of_the_submitter_do_not_shadow_others(client, ask, tmp_path, monkeypatch):
    for name in ("json", "random", "logging", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemError('the wrong module')")
    monkeypatch.chdir(tmp_path)
    assert client.wait(client.submit(ask())).succeeded


def test_relative_entries_of_pythonpath_mean_the_same_folder_in_the_job(client, ask, tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "my_training.py").write_text("def train():\n    return 'found'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "modules")
    assert client.wait(client.submit(ask("my_training:train"))).result == "found"


def test_a_state_folder_that_is_a_file_is_refused_in_one_line(client, ask, home):
    home.write_text("not a folder")
    for use in (lambda: client.submit(ask()), client.list_jobs, lambda: client.get_job("job")):
        with pytest.raises(BackendUnavailableError, match="Not a directory") as refused:
            use()
        assert len(str(refused.value).splitlines()) == 1
    home.unlink()


def test_the_default_state_folder_is_trainjob_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "elsewhere"))
    client = TrainerClient()
    name = client.train(runtime="python", trainer=CustomTrainer(func=returns))
    assert client.wait(name).succeeded
    assert (tmp_path / "elsewhere" / "jobs" / name).is_dir()


def test_a_ref_can_be_used_by_a_client_with_another_state_folder(client, ask, tmp_path):
    ref = client.submit(ask())
    other = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "other"))
    assert other.wait(ref).job == ref


def test_the_waiters_of_all_clients_share_one_poll_of_a_state_folder(client, running, home, gate):
    ref = running(waits_at, {"gate": gate})
    other = TrainerClient(LocalProcessBackendConfig(home=home))
    # Those of an earlier test end when they find that nothing waits for them.
    before = set(threading.enumerate())
    with client.follow(ref) as follower, other.follow(ref) as another, other.follow(ref, progress=True) as third:
        assert {each.next_observation(0).status for each in (follower, another, third)} == {"Running"}
        started = [thread.name for thread in threading.enumerate() if thread not in before]
        assert started.count("trainjob-poll") == 1


def test_a_job_survives_the_end_of_its_submitter_and_session(client, home, tmp_path, gate):
    program = f"""
from trainer_core import CustomTrainer, LocalProcessBackendConfig, Name, TrainerClient
client = TrainerClient(LocalProcessBackendConfig(home={str(home)!r}))
trainer = CustomTrainer(func="local_jobs:waits_at", func_args={{"gate": {gate!r}}})
print(client.submit(client.build_request(runtime="python", trainer=trainer, options=[Name("job")])).to_json())
import os, signal
os.killpg(0, signal.SIGKILL)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", program], env=env, start_new_session=True, check=False)
    assert client.get_job("job").status in ("Created", "Running")
    Path(gate).write_text("go")
    assert client.wait("job").result == "go"


def test_a_ref_cannot_name_a_folder_outside_the_state_folder(client, home):
    elsewhere = home.parent / "elsewhere"
    for folder in (elsewhere, home / "jobs"):
        folder.mkdir(parents=True)
    (elsewhere / "status.json").write_text("not ours")
    client.delete_job(TrainJobRef("local", str(home), "../../elsewhere", "uid"))
    assert (elsewhere / "status.json").exists()


def test_a_state_folder_that_cannot_be_read_is_an_error_of_the_backend(tmp_path):
    # For root, a name that is too long stands for the folder of another user.
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / ("x" * 300)))
    with pytest.raises(BackendUnavailableError, match=r"cannot be read: .*; fix it, or set another folder as home"):
        client.list_runtimes()


def test_a_file_in_the_state_folder_does_not_replace_a_module_of_python(client, ask, home):
    home.mkdir(mode=0o700)
    for module in ("json", "asyncio", "signal"):
        (home / f"{module}.py").write_text("raise SystemExit('replaced')")
    assert client.wait(client.submit(ask())).succeeded


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_while_a_job_is_changed_does_not_keep_others_from_changing_it(tmp_path, monkeypatch):
    monkeypatch.setattr(job_store, "_DESIRED_LOCK_SECONDS", 0.0)
    folder = StateFolder(tmp_path).job_folder("job")
    folder.path.mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    end = context.Event()
    child = context.Process(target=end.wait, args=(60,))
    with folder.lock_desired():
        child.start()
    try:
        with folder.lock_desired():
            assert child.is_alive()
    finally:
        end.set()
        child.join()


def test_the_jobs_of_a_folder_share_the_programs_of_their_nodes(client, ask, home):
    names = ["first", "second", "third", "fourth"]
    gate = threading.Barrier(len(names))

    def submit(name):
        gate.wait()
        return client.submit(ask(name=name))

    with ThreadPoolExecutor(len(names)) as pool:
        refs = list(pool.map(submit, names))
    client.delete_job("first")
    assert [client.wait(ref).result for ref in refs[1:]] == [client.wait("second").result] * 3
    (kit,) = (home / "kits").iterdir()
    assert {(home / "jobs" / name / "code").resolve() for name in names[1:]} == {kit}


def test_damaged_programs_of_nodes_are_replaced_by_the_next_submit(client, ask, home):
    client.wait(client.submit(ask(returns, {"value": 1}, name="first")))
    (kit,) = (home / "kits").iterdir()
    files = sorted(path for path in kit.rglob("*.py"))
    before = {path: path.read_text() for path in files}
    files[0].unlink()
    files[1].write_text("")
    (kit / serializer.BOOTSTRAP).write_text(before[kit / serializer.BOOTSTRAP].replace("return", "retour", 1))
    assert client.wait(client.submit(ask(returns, {"value": 2}, name="second"))).result == 2
    assert {path: path.read_text() for path in files} == before
    shutil.rmtree(kit)
    assert client.wait(client.submit(ask(returns, {"value": 3}, name="third"))).result == 3


def test_compiled_files_that_a_full_disk_has_cut_do_not_break_the_next_jobs(client, ask, home, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    client.wait(client.submit(ask(returns, {"value": 1}, name="first")))
    for compiled in home.rglob("kits/**/*.pyc"):
        os.truncate(compiled, compiled.stat().st_size // 2)
    assert client.wait(client.submit(ask(returns, {"value": 2}, name="second"))).result == 2


def test_the_jobs_of_a_state_folder_can_lie_behind_a_link(client, ask, home):
    (home.parent / "elsewhere/jobs").mkdir(parents=True)
    home.mkdir()
    (home / "jobs").symlink_to(home.parent / "elsewhere/jobs")
    assert client.wait(client.submit(ask(returns, {"value": 1}))).result == 1
