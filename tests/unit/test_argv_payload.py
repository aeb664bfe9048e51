"""A function arrives in a container by its arguments alone, and runs there as it would here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from node_process import Ended, module_of

from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.model.request import Code
from trainer_core.node import launch as launching, termination
from trainer_core.packaging import argv_payload, serializer

NOBODY = 65534
OWN_NUMBERS = ("--pid", "--fork", "--mount-proc")
HERE = Path(sys.executable).parent
#: Versions that pyenv keeps beside the one of these tests; an image may have any from 3.8 on.
OTHER_PYTHONS = sorted(Path(sys.base_prefix).parent.glob("3.[89].*/bin")) + sorted(
    Path(sys.base_prefix).parent.glob("3.1[0-9].*/bin")
)
NO_OTHER_PYTHON = pytest.param(None, id="none", marks=pytest.mark.skip("needs Pythons that pyenv has installed"))
NASTY = "\t'\"`id` $HOME $(HOME) $$ \\n %s {} ü 訓 \U0001f600"


def code_of(func, args=None, mode="source"):
    return Code(**serializer.package(func, args, mode))


@dataclass
class Container:
    """What a container gives a process: folders, an environment, and a Python on the PATH."""

    folder: Path
    python: Path = HERE

    @property
    def log(self):
        return self.folder / "termination-log"

    def start(self, argv, *, user=None, **env):
        settings = {
            "PATH": f"{self.python}:/usr/bin:/bin",
            "TMPDIR": str(self.folder),
            "TRAINJOB_TERMINATION_LOG": str(self.log),
        }
        return subprocess.Popen(
            argv,
            env={**settings, **env},
            cwd=self.folder,
            user=user,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def end(self, process):
        try:
            stdout, stderr = process.communicate(timeout=500)
        finally:
            process.kill()
        record = termination.parse_record(self.log.read_bytes()) if self.log.exists() else None
        return Ended(process.returncode, stdout, stderr, record)

    def run(self, argv, **settings):
        return self.end(self.start(argv, **settings))


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """Programs of a Python that has pip and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True, with_pip=True)
    return folder / "bin"


@pytest.fixture
def container(tmp_path, bare):
    return Container(tmp_path, bare)


@pytest.fixture
def container_with_torch(tmp_path):
    return Container(tmp_path)


@pytest.fixture
def systems_python():
    """What the system's package manager owns, for a user who can write to one folder only, as to /tmp."""
    python = Path("/usr/bin/python3")
    if os.geteuid() != 0 or subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("needs root to become another user, and a system's Python that has pip")
    # Those of pytest are root's only.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield Container(folder, python.parent)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    """URL of a package index that has one package, ``tidings``."""
    place = tmp_path_factory.mktemp("index") / "simple" / "tidings"
    place.mkdir(parents=True)
    name = wheel_of(place).name
    (place / "index.html").write_text(f'<html><body><a href="{name}">{name}</a></body></html>', encoding="utf-8")
    return place.parent.as_uri()


@pytest.fixture
def offline():
    """The configuration of pip on this machine has nothing to do with a container's."""
    return {"PIP_CONFIG_FILE": os.devnull}


def unshares():
    """Return whether a process can be the first one here, as it is in a container."""
    with contextlib.suppress(OSError):
        return subprocess.run(["unshare", *OWN_NUMBERS, "true"], capture_output=True, check=False).returncode == 0
    return False


def noise_of(size):
    """Text that cannot be compressed to much less than so many bytes."""
    return random.Random(3).randbytes(size).hex()  # noqa: S311 -- nothing secret


def wheel_of(folder):
    """The file of a package ``tidings``, made in a folder."""
    path = folder / "tidings-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tidings.py", "NEWS = 'good'\n")
        wheel.writestr("tidings-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tidings\nVersion: 1.0\n")
        wheel.writestr("tidings-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tidings-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def port():
    """A port that the system gives to no other process, except one that may share an address, as a rendezvous does."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def news():
    import tidings

    return tidings.NEWS


def ok():
    return "ok"


# ---- the arguments -------------------------------------------------------------------------------------------


def test_equal_functions_make_equal_commands_whatever_the_order_of_their_arguments():
    def train(**given):
        return given

    one, other = code_of(train, {"a": 1, "b": {"c": 2, "d": 3}}), code_of(train, {"b": {"d": 3, "c": 2}, "a": 1})
    assert argv_payload.render_argv(one, ["x"], launch="torchrun") == argv_payload.render_argv(
        other, ["x"], launch="torchrun"
    )


def test_nothing_in_the_command_is_expanded_by_kubernetes_or_changed_by_a_locale():
    text = "".join(argv_payload.render_argv(code_of(ok, mode="source"), ["ü"]))

    assert "$" not in text
    assert text.isascii()


def test_no_argument_is_longer_than_a_server_takes(tmp_path):
    noise = noise_of(150_000)
    big = module_of(tmp_path / "big.py", f"def train():\n    return {noise!r}\n")
    argv = argv_payload.render_argv(code_of(big.train))

    assert len(argv) > 5
    assert max(map(len, argv)) <= 65_536


def test_a_function_too_large_for_arguments_is_refused(tmp_path):
    noise = noise_of(800_000)
    big = module_of(tmp_path / "huge.py", f"def train():\n    return {noise!r}\n")

    with pytest.raises(UnsupportedError, match=r"train and its arguments take \d+ characters"):
        argv_payload.render_argv(code_of(big.train))


def test_an_index_url_with_a_password_is_refused_without_showing_it():
    with pytest.raises(InvalidRequestError, match=r"pip_index_urls\[0\] contains a user or password") as refused:
        argv_payload.render_argv(code_of(ok), ["x"], ["https://me:s3cret@index.example.com/simple"])

    assert "s3cret" not in str(refused.value)


def test_mpirun_starts_the_processes_with_the_variables_named(container):
    argv = argv_payload.render_argv(code_of(ok), launch="mpirun", exported=["A", "B"])

    assert argv[:9] == ["mpirun", "--hostfile", "/etc/mpi/hostfile", "-x", "A", "-x", "B", "python3", "-c"]
    assert container.run(argv[7:]).result == "ok"


# ---- arriving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launch", ["python", "torchrun"])
def test_ninety_kilobytes_of_nasty_source_arrive_byte_for_byte(container, tmp_path, launch):
    noise = [f"{hashlib.sha256(str(i).encode()).hexdigest()} {NASTY}" for i in range(900)]
    lines = "\n".join(f"    lines.append({line!r}); print(lines[-1])" for line in noise)
    big = module_of(tmp_path / "big.py", f"def train(given):\n    lines = [given]\n{lines}\n    return lines\n")
    code = code_of(big.train, {"given": NASTY})
    whole = tmp_path / "result.json"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = container.run(argv_payload.render_argv(code, launch=launch), TRAINJOB_RESULT_URI=str(whole), **ascii_only)

    assert len(code.text) > 90_000
    assert ended.code == 0, ended.stderr
    assert json.loads(whole.read_bytes()) == [NASTY, *noise]


@pytest.mark.parametrize("python", OTHER_PYTHONS or [NO_OTHER_PYTHON], ids=lambda python: python.parent.name)
def test_other_pythons_take_it(container, python):
    container.python = python

    assert container.run(argv_payload.render_argv(code_of(ok))).result == "ok"


def test_the_function_sees_trainer_core_though_it_is_not_installed(container):
    def train():
        from trainer_core import progress

        progress(step=1, total=1)
        return "seen"

    ended = container.run(argv_payload.render_argv(code_of(train)))

    assert ended.result == "seen"
    assert "[trainjob:progress]" in ended.stdout


def test_modules_in_the_working_directory_do_not_hide_pythons_own(container):
    for name in ("random", "tempfile", "zlib", "signal"):
        (container.folder / f"{name}.py").write_text("raise RuntimeError('the wrong one')\n", encoding="utf-8")

    assert container.run(argv_payload.render_argv(code_of(ok))).result == "ok"


def test_what_is_unpacked_is_for_its_user_only_and_the_umask_of_the_training_is_unchanged(container):
    def train():
        import os
        import stat
        from pathlib import Path

        payload = Path(os.environ["TRAINJOB_PAYLOAD"])
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (payload.parent, payload)]
        return [*modes, os.umask(0)]

    own = os.umask(0)
    os.umask(own)
    assert container.run(argv_payload.render_argv(code_of(train))).result == [
        stat.S_IRWXU,
        stat.S_IRUSR | stat.S_IWUSR,
        own,
    ]


def test_without_room_to_unpack_the_end_says_so(container):
    # Files of more than a kilobyte cannot be written.
    argv = ["/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *argv_payload.render_argv(code_of(ok))]
    ended = container.run(argv)

    assert ended.code == 1
    assert "the training code cannot be unpacked" in ended.error["message"]
    assert "mount an emptyDir volume at /tmp" in ended.stderr


def test_another_user_without_a_home_needs_no_more_than_tmp(systems_python):
    ended = systems_python.run(argv_payload.render_argv(code_of(ok), launch="torchrun"), user=NOBODY, LANG="C")

    assert ended.result == "ok"


# ---- launching -----------------------------------------------------------------------------------------------


def ranks():
    import os

    return [os.environ.get("RANK"), os.environ.get("WORLD_SIZE"), os.getpid()]


@pytest.mark.slow
def test_torchrun_starts_the_processes_that_the_controller_asks_for_and_the_first_reports(container_with_torch, port):
    def train(rows):
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, Dataset

        class Rows(Dataset):
            def __len__(self):
                return rows

            def __getitem__(self, index):
                return torch.tensor(float(index))

        dist.init_process_group("gloo")
        total = sum(DataLoader(Rows(), num_workers=1, multiprocessing_context="fork"))
        total += dist.get_rank()
        dist.all_reduce(total)
        rank = dist.get_rank()
        dist.destroy_process_group()
        return {"total": total.item(), "rank": rank}

    argv = argv_payload.render_argv(code_of(train, {"rows": 4}), launch="torchrun")
    place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    nodes = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0"}
    # A worker of torch's DataLoader hangs where the path of its socket has more than 107 characters.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        ended = container_with_torch.run(argv, TMPDIR=short, **nodes, **place)

    assert ended.result == {"total": 2 * (0 + 1 + 2 + 3) + 1, "rank": 0}


def test_without_torch_one_plain_process_takes_its_place_among_the_nodes(container):
    argv = argv_payload.render_argv(code_of(ranks), launch="torchrun")
    ended = container.run(argv, PET_NNODES="2", PET_NPROC_PER_NODE="1", PET_NODE_RANK="0")

    assert ended.result[:2] == ["0", "2"]
    assert ended.stderr == ""


def test_without_torch_several_processes_on_a_node_are_refused(container):
    ended = container.run(argv_payload.render_argv(code_of(ok), launch="torchrun", processes=2), PET_NPROC_PER_NODE="2")

    assert ended.code == 1
    assert ended.error["type"] == "trainjob.LaunchError"
    assert "2 needs torchrun" in ended.error["message"]


def test_without_torch_a_process_for_each_cpu_that_was_not_requested_is_one(container):
    ended = container.run(argv_payload.render_argv(code_of(ok), launch="torchrun"), PET_NPROC_PER_NODE="4")

    assert ended.result == "ok"


def test_a_signal_to_the_container_reaches_the_training(container):
    def train():
        import signal
        import sys

        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
        print("ready", flush=True)
        signal.pause()

    process = container.start(argv_payload.render_argv(code_of(train)))
    assert process.stdout.readline() == "ready\n"
    process.terminate()

    assert container.end(process).code == 7


@pytest.mark.skipif(not unshares(), reason="unshare is not permitted here")
def test_a_node_that_waits_for_the_others_ends_at_once_on_sigterm(container_with_torch, port):
    argv = argv_payload.render_argv(code_of(ok), launch="torchrun")
    place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), "PET_NPROC_PER_NODE": "1"}
    argv = ["unshare", "--kill-child", *OWN_NUMBERS, *argv]
    process = container_with_torch.start(argv, PET_NNODES="2", PET_NODE_RANK="0", **place)
    try:
        wait_for_listener(process, port)
        (first,) = psutil.Process(process.pid).children()
        first.terminate()
        assert process.wait(300) == 128 + signal.SIGTERM
    finally:
        process.kill()
        container_with_torch.end(process)


def wait_for_listener(process, port):
    """Wait until a child of a process listens at a port: the rendezvous of a first node."""
    while process.poll() is None:
        for each in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in each.net_connections()):
                    return
    raise AssertionError(process.communicate()[1])


def test_a_node_in_which_torchrun_has_no_processes_says_that_it_waits(monkeypatch, capfd):
    monkeypatch.setattr(launching, "_PATIENCE", 0.01)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        code, is_stopped = launching._watch(subprocess.Popen(["sleep", "0.2"]))
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert (code, is_stopped) == (0, False)
    assert set(capfd.readouterr().out.splitlines()) == {launching.WAITING}


def test_a_node_that_starts_when_the_training_is_complete_ends_with_its_result(container, container_with_torch, port):
    def train(loss):
        from trainer_core import checkpoints

        print("trains", checkpoints().rank)
        return {"loss": loss}

    place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), "PET_NPROC_PER_NODE": "1"}
    place |= {"TRAINJOB_CHECKPOINT_PATH": str(container.folder / "of" / "g-0"), "TRAINJOB_CHECKPOINTS": "{}"}
    assert container.run(argv_payload.render_argv(code_of(train, {"loss": 0.5})), **place).stdout == "trains 0\n"

    # The other node is not there: it has ended.
    argv = argv_payload.render_argv(code_of(train, {"loss": 0.5}), launch="torchrun")
    again = container_with_torch.run(argv, PET_NNODES="2", PET_NODE_RANK="0", **place)
    assert (again.code, again.result) == (0, {"loss": 0.5})
    assert again.stdout == "trainjob: the training is complete, and this node ends with its result\n"
    other = container.run(argv_payload.render_argv(code_of(train, {"loss": 0.4})), **place)
    assert (other.stdout, other.result) == ("trains 0\n", {"loss": 0.4})


def test_torchrun_gets_the_signal_for_its_processes(container_with_torch, port):
    def train():
        import signal
        import sys

        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
        print("ready", flush=True)
        signal.pause()

    argv = argv_payload.render_argv(code_of(train), launch="torchrun")
    place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
    process = container_with_torch.start(argv, PET_NNODES="1", PET_NPROC_PER_NODE="1", PET_NODE_RANK="0", **place)
    assert process.stdout.readline() == "ready\n"
    process.terminate()

    assert container_with_torch.end(process).error["message"] == "7"


@pytest.mark.skipif(not unshares(), reason="unshare is not permitted here")
def test_the_first_process_of_a_container_ends_on_sigterm(container):
    def train():
        import os
        import signal

        print("child of process", os.getppid(), flush=True)
        os.kill(1, signal.SIGTERM)
        signal.pause()

    ended = container.run(["unshare", *OWN_NUMBERS, *argv_payload.render_argv(code_of(train))])

    assert ended.stdout == "child of process 1\n"
    assert ended.code == 128 + signal.SIGTERM


# ---- packages ------------------------------------------------------------------------------------------------


def test_packages_are_installed_before_the_function_runs(container, offline, index):
    ended = container.run(argv_payload.render_argv(code_of(news), ["tidings>=1"], [index]), **offline)

    assert ended.result == "good"
    assert "Successfully installed tidings-1.0" in ended.stdout


def test_what_the_image_has_is_seen_and_not_installed_again(container_with_torch, offline, index):
    def train():
        import pydantic
        import tidings

        return [pydantic.__name__, tidings.NEWS]

    argv = argv_payload.render_argv(code_of(train), ["tidings", "pydantic"], [index])
    ended = container_with_torch.run(argv, **offline)

    assert ended.result == ["pydantic", "good"]
    assert "Requirement already satisfied: pydantic" in ended.stdout


def test_processes_that_start_together_install_once(container, offline, index):
    argv = argv_payload.render_argv(code_of(news), ["tidings"], [index])
    started = [container.start(argv, OMPI_COMM_WORLD_RANK=str(rank), **offline) for rank in range(3)]
    ended = [container.end(process) for process in started]

    assert [each.result for each in ended] == ["good"] * 3
    assert sum("Successfully installed" in each.stdout for each in ended) == 1


def test_packages_that_cannot_be_installed_are_named_with_what_pip_said(container, offline, index):
    ended = container.run(argv_payload.render_argv(code_of(news), ["tidings", "no-such-thing"], [index]), **offline)

    assert ended.code == 1
    assert ended.error["type"] == "trainjob.PackageInstallError"
    assert ended.error["message"].startswith("pip could not install tidings, no-such-thing: ERROR: Could not find")
    assert "No matching distribution found for no-such-thing" in ended.error["traceback"]


def test_an_installation_ends_on_sigterm(container, offline, tmp_path):
    pipe = tmp_path / "pipe-1.0-py3-none-any.whl"
    os.mkfifo(pipe)
    argv = argv_payload.render_argv(code_of(news), [f"pipe @ {pipe.as_uri()}"])
    process = container.start(argv, **offline)
    assert "Processing" in process.stdout.readline()
    held = None
    while held is None and process.poll() is None:
        with contextlib.suppress(OSError):  # Until pip reads it.
            held = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    process.terminate()

    assert container.end(process).code == 128 + signal.SIGTERM
    with pytest.raises(OSError, match="No such device"):  # pip no longer reads it.
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    os.close(held)


def test_a_read_only_python_of_the_system_gets_packages_too(systems_python, offline):
    requirement = f"tidings @ {wheel_of(systems_python.folder).as_uri()}"
    ended = systems_python.run(
        argv_payload.render_argv(code_of(news), [requirement]), user=NOBODY, **offline, PIP_USER="1"
    )

    assert ended.result == "good"


def test_without_pip_the_end_says_what_to_do(tmp_path, offline):
    venv.create(tmp_path / "without", symlinks=True, with_pip=False)
    # Stands in the way of Python's own ensurepip, which Debian leaves out.
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "ensurepip.py").write_text("raise SystemExit('No module named ensurepip')\n")
    container = Container(tmp_path, tmp_path / "without" / "bin")
    ended = container.run(argv_payload.render_argv(code_of(news), ["tidings"]), PYTHONPATH=str(tmp_path / "hide"))

    assert "this image has neither pip nor ensurepip" in ended.error["message"]
