"""Debugs a TrainJob on this machine in one process. It reads the TrainJob and writes only into a temporary folder."""

from __future__ import annotations

import base64
import getpass
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_core.base.errors import InvalidRequestError, UnsupportedError
from trainer_core.client import debug_request
from trainer_core.fetch.schemes import SOURCE_MODULES
from trainer_core.fetch.settings import ENV_PREFIX
from trainer_core.lifecycle import debugging
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, build_failed_outcome, diagnose
from trainer_core.model.jobs import Diagnosis, Outcome, TrainJob, TrainJobRef
from trainer_core.model.request import Code, Project, TrainerRequest, TrainJobRequest
from trainer_core.node import load_function
from trainer_core.node.project import ProjectError, decompress
from trainer_core.packaging import code_location

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

_PYTHON = "{}.{}".format(*sys.version_info[:2])
#: A file of the libraries of an interpreter in a traceback.
_LIBRARY = re.compile(r'/lib(?:64)?/python(3\.\d+)/[^"\n]+\.py"')


@dataclass(frozen=True)
class DebugResult:
    """How a TrainJob ended that was debugged on this machine.

    Attributes:
        job: Name of the TrainJob.
        outcome: How its function ended here.
        failure: Why the TrainJob failed. None if it did not.
        same_error: Whether the function failed here with the same type of exception at the same line, or in the same
            way if it raised none.
        left_out: What this machine lacked of the TrainJob, one line for each.
    """

    job: str
    outcome: Outcome
    failure: Diagnosis | None
    same_error: bool
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        """Return the comparison of both ends in one line."""
        here = self.outcome.diagnosis
        there = f"{self.job} failed: {self.failure}" if self.failure else f"{self.job} has not failed"
        if here is None:
            return f"no error here; {there}"
        return f"same error as {self.job}: {here}" if self.same_error else f"another error here: {here}; {there}"


@dataclass(frozen=True)
class DebugOptions:
    """What a user asked for; see `TrainerClient.debug`."""

    from_checkpoint: bool | int = False
    dataset: str | Path | None = None
    break_at: str | None = None
    pdb: bool = True
    on: str = "debug"
    nodes: int | None = None
    env: Mapping[str, str] | None = None

    def check(self) -> None:
        """Check that the options fit together."""
        if self.on not in ("debug", "local"):
            raise InvalidRequestError(f"on must be debug or local, got {self.on[:50]!r}")
        if self.on == "debug" and self.nodes is not None:
            raise InvalidRequestError("nodes: the debug backend runs rank 0 alone; use on='local' (--on local)")
        if self.nodes is not None and self.nodes < 1:
            raise InvalidRequestError(f"nodes must be at least 1, got {self.nodes}")
        if self.break_at is not None and (self.on == "local" or not self.pdb):
            raise InvalidRequestError(
                "a breakpoint needs the debugger: use neither --on local nor --no-pdb with --break"
            )

    def parse_breakpoint(self) -> tuple[str | None, int]:
        """Return file and line of the breakpoint; ``(None, 0)`` for none."""
        if self.break_at is None:
            return None, 0
        file, _, line = self.break_at.rpartition(":")
        if not file or not line.isdecimal() or not line.isascii() or int(line) < 1:
            raise InvalidRequestError(f"--break must be FILE:LINE, such as train.py:12, got {self.break_at[:100]!r}")
        return file.removeprefix("./"), int(line)


def debug(backend: Backend, ref: TrainJobRef, options: DebugOptions, home: Path) -> DebugResult:
    """Run the function of a TrainJob here and compare how it ends. The home folder has environments with packages."""
    from trainer_core.client import saved_checkpoints  # Only for debugging, as what this function calls.

    options.check()
    file, line = options.parse_breakpoint()
    job, outcome, request = backend.get_job_by_ref(ref), backend.observe(ref).outcome, backend.get_request(ref)
    trainer, code = _get_trainer(backend, ref, request)
    failure = outcome.diagnosis if outcome else None
    _check_python(ref.name, code, failure)
    dataset = None if options.dataset is None else _find_dataset(options.dataset)
    nodes = (options.nodes or 1) if options.on == "local" else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainjob-debug-"))).resolve()
        step = None
        if options.from_checkpoint is not False:
            asked = None if options.from_checkpoint is True else options.from_checkpoint
            place = debug_request.get_checkpoint_folder(folder, job.name)
            try:
                step = saved_checkpoints.copy_of_job(backend, ref, asked, place)
            except UnsupportedError as error:
                raise UnsupportedError(
                    f"{error}; leave out from_checkpoint (--from-checkpoint) to debug from the beginning"
                ) from None
        stack.enter_context(_set_environment(request, options.env or {}))
        here = debug_request.build_request(
            request,
            trainer,
            job,
            folder=folder,
            given_env=options.env or {},
            dataset=dataset,
            fetchable=SOURCE_MODULES,
            nodes=nodes,
        )
        left_out = debug_request.list_left_out(
            request,
            trainer,
            job,
            outcome,
            fetchable=SOURCE_MODULES,
            step=step,
            dataset=dataset,
            nodes=nodes,
            runs_image=ref.backend != "local",
        )
        _print_start(job, code, step, left_out)
        if nodes:
            ended = _run_local(here, folder)
        else:
            ended = _run_session(request, here, folder, failure, (file, line) if options.pdb else None, home)
    same = bool(failure and ended.diagnosis and debugging.is_same_failure(failure, ended.diagnosis))
    return DebugResult(job.name, ended, failure, same, tuple(left_out))


def _print_start(job: TrainJob, code: Code, step: int | None, left_out: list[str]) -> None:
    begin = "" if step is None else f", from the checkpoint of step {step}"
    print(f"trainjob: {code.entry} of TrainJob {job.name} on this machine{begin}", file=sys.stderr)
    for each in left_out:
        print(f"trainjob: not carried: {each}", file=sys.stderr)


def _get_trainer(backend: Backend, ref: TrainJobRef, request: TrainJobRequest) -> tuple[TrainerRequest, Code]:
    """Return the trainer and its function with the files of its project, after checking their digests."""
    if backend.name == "debug":
        raise UnsupportedError(f"TrainJob {ref.name!r} ran in this process: put breakpoint() into its function instead")
    trainer, code = request.work.trainer, backend.get_code(ref)
    if trainer is None or trainer.code is None or code is None:
        kinds = {"container": "an image", "builtin": "a recipe"}
        what = kinds.get(trainer.kind, "") if trainer else "only initializers"
        raise UnsupportedError(f"TrainJob {ref.name!r} runs {what} and no Python function; only a function is debugged")
    if {code.digest, trainer.code.digest} != {load_function.digest(code.kind, code.text, code.entry)}:
        raise InvalidRequestError(f"TrainJob {ref.name!r}: the function does not match its digest; it was changed")
    if code.project is not None and trainer.code.project is not None:
        archive = _read_project(ref.name, code.project, trainer.code.project.digest)
        project = code.project.model_copy(update={"archive": archive, "uri": None})
        code = code.model_copy(update={"project": project})
    return trainer.model_copy(update={"code": code}), code


def _read_project(name: str, project: Project, digest: str) -> str:
    """Return the compressed files of a project, from their object or from the request."""
    try:
        if project.uri is None:
            if not project.archive:
                raise ProjectError("the files of its function were in the arguments of the job, which has none now")
            decompress(project.archive, digest)
            return project.archive
        return base64.b64encode(code_location.fetch(project.uri, digest)).decode("ascii")
    except ProjectError as error:
        raise InvalidRequestError(f"TrainJob {name!r}: {error}") from error
    except OSError as error:
        # The text of an error of the file system repeats the path.
        reason = error.strerror or error
        raise InvalidRequestError(
            f"TrainJob {name!r}: the files of its function were at {project.uri}: {reason}"
        ) from error


def _check_python(name: str, code: Code, failure: Diagnosis | None) -> None:
    """Check that the TrainJob ran with this minor version of Python, as far as it is known."""
    pickled = code.text.partition(":")[0] if code.kind == "cloudpickle" and ":" in code.text[:8] else None
    library = _LIBRARY.search((failure.traceback or "") if failure else "")
    version = pickled or (library[1] if library else None)
    if version not in (None, _PYTHON):
        raise UnsupportedError(
            f"TrainJob {name!r} ran with Python {version}, and this is Python {_PYTHON}; install trainjob-workflows in "
            f"Python {version} and debug there"
        )


def _find_dataset(dataset: str | Path) -> str:
    path = Path(dataset).expanduser().absolute()
    if not path.exists():
        raise InvalidRequestError(f"--dataset {str(dataset)[:200]!r} does not exist; give a file or folder")
    return path.as_uri()


@contextmanager
def _set_environment(request: TrainJobRequest, given: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and ask for the secrets of the request that this environment lacks."""
    before = dict(os.environ)
    os.environ.update(given)
    try:
        for name, description in list_secrets(request):
            if name not in os.environ:
                os.environ[name] = _ask_for_secret(name, description)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def list_secrets(request: TrainJobRequest) -> Iterator[tuple[str, str]]:
    """Yield the variable and the origin of each secret that the request refers to."""
    for name, ref in (request.work.trainer.secret_env if request.work.trainer else {}).items():
        yield name, f"Secret {ref.name}, key {ref.key}"
    for role, source in request.initializer_sources():
        if source.storage_uri.partition("://")[0] in SOURCE_MODULES:
            for name, ref in source.secrets.items():
                yield f"{ENV_PREFIX}{role.upper()}_{name}", f"{role}: Secret {ref.name}, key {ref.key}"


def _ask_for_secret(name: str, description: str) -> str:
    if not sys.stdin or not sys.stdin.isatty():
        raise InvalidRequestError(f"{name} ({description}) is not set here; export it, or run this on a terminal")
    return getpass.getpass(f"{name} ({description}): ")


def _run_session(
    request: TrainJobRequest,
    here: TrainJobRequest,
    folder: Path,
    failure: Diagnosis | None,
    pdb: tuple[str | None, int] | None,
    home: Path,
) -> Outcome:
    """Run the function on the debug backend: in this process, where it needs no other."""
    from trainer_core.client.debug_session import INTERRUPTED, Session, run

    file, line = pdb or (None, 0)
    session = Session(here.to_json(), str(folder), pdb is not None, file, line)
    packages = request.work.trainer.packages if request.work.trainer else ()
    # A function that ended without an exception may end the process.
    if not packages and not (failure and failure.exit_code is not None and not failure.traceback):
        return run(session)
    session.write()
    interpreter = _build_environment(request, home) if packages else sys.executable
    process = subprocess.Popen([interpreter, "-m", "trainer_core.client.debug_session", str(folder)])
    code = _wait(process)
    ended = session.read_outcome()
    if ended is not None:
        return ended
    if code in (INTERRUPTED, -signal.SIGINT):
        raise KeyboardInterrupt
    facts = Facts(steps=[StepFacts("node-0", exit_code=code)])
    return build_failed_outcome(TrainJobRef("debug", str(folder), here.require_name(), "session"), diagnose(facts))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process that gets the interrupts of the terminal, too, and answers them itself."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _build_environment(request: TrainJobRequest, home: Path) -> str:
    """Return the interpreter of the environment with the packages of the request, as the local backend has it."""
    from trainer_core.backends.local import environments
    from trainer_core.node.packages import MARKER

    trainer = request.work.trainer
    if trainer is None:
        return sys.executable
    spec = {"packages": sorted(set(trainer.packages)), "index_urls": list(trainer.pip_index_urls)}
    place = home / "environments"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        environments.build_environment(place, spec, sys.stderr.buffer, {})
    except environments.EnvironmentBuildError as error:
        raise InvalidRequestError(f"{error}; see the messages above") from error
    interpreter = environments.get_interpreter(place, spec)
    (interpreter.parents[1] / MARKER).touch()  # Old ones that no job uses are removed.
    return str(interpreter)


def _run_local(here: TrainJobRequest, folder: Path) -> Outcome:
    """Run the function as a job of the local backend, whose store is in the folder, and print its log."""
    from trainer_core.backends.local.backend import LocalProcessBackend
    from trainer_core.model.config import LocalProcessBackendConfig
    from trainer_core.model.logs import merge_streams
    from trainer_core.model.readable_log import format_log_lines

    backend = LocalProcessBackend(LocalProcessBackendConfig(home=folder / "store"))
    ref = backend.submit(here)
    try:
        steps = [each.name for each in backend.get_job(ref.name).steps]
        streams = {step: format_log_lines(backend.logs(ref, step, follow=True)) for step in steps}
        for step, line in merge_streams(streams):
            print(f"[{step}] {line}", flush=True)
        with backend.follow(ref) as follower:
            while (outcome := follower.next_observation(60.0).outcome) is None:
                pass
        return outcome
    finally:
        backend.delete(ref)
