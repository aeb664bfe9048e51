"""Subcommands that create TrainJobs: submit, initialize, render."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.text import format_size
from trainer_core.cli import exit_codes, progress
from trainer_core.cli.options import expand_flags, parse_arguments, parse_key_values, parse_options
from trainer_core.cli.output import OutputFormat, OutputOption, print_json, print_yaml
from trainer_core.client import TrainerClient
from trainer_core.client.waiting import check_restarts
from trainer_core.definition.initializers import initializer_from_dict
from trainer_core.definition.trainers import CustomTrainer, CustomTrainerContainer
from trainer_core.frontend import definition_file
from trainer_core.lifecycle.adoption import describe_existing
from trainer_core.lifecycle.wait_state import failure_message
from trainer_core.model.jobs import Diagnosis, TrainJobRef
from trainer_core.model.readable_log import format_log_line
from trainer_core.model.request import TRACEPARENT_PATTERN, TrainJobRequest
from trainer_core.model.restart_rules import RestartRules
from trainer_core.packaging import requirements_file
from trainer_core.packaging.project import read_files

Arg = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", "-a", help="Argument of the function: name=value, converted to the type of its annotation; repeatable."
    ),
]
Package = Annotated[
    list[str] | None, typer.Option("--package", "-p", help="Package to install with pip before training; repeatable.")
]
Requirements = Annotated[
    str | None,
    typer.Option(
        "--requirements",
        "-r",
        help="requirements.txt, pyproject.toml or uv.lock with packages to install, relative to --code.",
    ),
]
Extra = Annotated[
    list[str] | None, typer.Option(help="Extra of the pyproject.toml or uv.lock of --requirements; repeatable.")
]
Code = Annotated[
    list[str] | None,
    typer.Option(
        help="Folder that travels with the function, which is imported from it; or paths and patterns, repeatable."
    ),
]
Dataset = Annotated[str | None, typer.Option(help="URI of a dataset to fetch before training.")]
Model = Annotated[str | None, typer.Option(help="URI of a model to fetch before training.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="Option of the TrainJob: Name=value, such as QueueName=nightly, or JSON, such as "
        """'{"Checkpoints": {"every_steps": 100}}'; repeatable.""",
    ),
]
JobName = Annotated[str | None, typer.Option("--name", "-n", help="Name of the TrainJob. Default: a random name.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the TrainJob has ended.")]
Timeout = Annotated[
    float | None,
    typer.Option(min=0, help="With --wait: maximum time to wait for all attempts, in seconds; default: no limit."),
]
Attempts = Annotated[
    int,
    typer.Option(
        min=1,
        help="With --wait: after a failure against which a retry can help, start the next attempt, up to this many in "
        "total; it continues from the last checkpoint. Default: 1.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What `submit` and `render` build a request of."""

    function: Annotated[str | None, typer.Argument(metavar="MODULE:FUNCTION", help="The training function.")] = None
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", help="Definition of the TrainJob in YAML or JSON; - for standard input."),
    ] = None
    arg: Arg = None
    runtime: Annotated[str | None, typer.Option(help="Name of the runtime. Default: torch-distributed.")] = None
    nodes: Annotated[int | None, typer.Option(help="Number of nodes. Default: that of the runtime.")] = None
    procs_per_node: Annotated[
        int | None, typer.Option("--procs-per-node", help="Processes per node. Default: that of the runtime.")
    ] = None
    image: Annotated[
        str | None,
        typer.Option(
            help="Container image of the nodes; without a function, the command of the image or runtime runs."
        ),
    ] = None
    package: Package = None
    requirements: Requirements = None
    extra: Extra = None
    code: Code = None
    code_uri: Annotated[
        str | None,
        typer.Option(
            help="s3:// or file:// place for a --code that is too large for the job. Default: that of the backend."
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", help="Environment variable of the training processes: NAME=VALUE; repeatable."),
    ] = None
    packaging: Annotated[str, typer.Option(help="How the function is packaged: source, reference or cloudpickle.")] = (
        "source"
    )
    dataset: Dataset = None
    model: Model = None
    option: Option = None
    name: JobName = None

    def build_request(self, client: TrainerClient) -> TrainJobRequest:
        """Build the request that the flags ask for."""
        if self.file is not None:
            return self._build_file_request(client, self.file)
        sources = {role: uri for role, uri in (("dataset", self.dataset), ("model", self.model)) if uri}
        try:
            return client.build_request(
                runtime=self.runtime,
                trainer=self._build_trainer(),
                initializer=initializer_from_dict(sources) if sources else None,
                options=_collect_options(self.name, self.option),
            )
        except ValueError as error:
            # In the words of the command.
            message = re.sub(r"\bfunc_args\.(\w+)", r"--arg \1", str(error))
            raise InvalidRequestError(message.replace("add it to func_args", "add --arg NAME=VALUE")) from error

    def _build_file_request(self, client: TrainerClient, file: str) -> TrainJobRequest:
        """Build the request of a definition; arguments, options and name of the command line take precedence."""
        if self.function is not None:
            raise InvalidRequestError(
                f"{self.function} and --file cannot be used together; name the function in the definition"
            )
        defined = [each.name for each in fields(self) if each.name not in ("function", "file", "arg", "option", "name")]
        self._reject(defined, "cannot be used with --file; set it in the definition")
        data = definition_file.read_definition(file)
        data = {**data, "name": self.name} if self.name else dict(data)
        if (self.arg or self.option) and "version" in data:
            raise InvalidRequestError(
                "--arg and --option cannot be used with a complete request; change it in the file"
            )
        if self.option:
            data["options"] = [*(data.get("options") or []), *parse_options(self.option)]
        if self.arg:
            trainer = data.get("trainer")
            if not isinstance(trainer, dict) or "func" not in trainer:
                raise InvalidRequestError("--arg needs a training function, and the definition has no trainer.func")
            func_args = {**(trainer.get("func_args") or {}), **parse_arguments(self.arg)}
            data["trainer"] = {**trainer, "func_args": func_args}
        return definition_file.build_definition_request(client, data, Path(file).parent if file != "-" else None)

    def _build_trainer(self) -> CustomTrainer | CustomTrainerContainer:
        if self.function is not None:
            return self._build_function_trainer(self.function)
        if self.image is not None:
            return self._build_container_trainer(self.image)
        raise InvalidRequestError(
            "nothing to run; pass a training function as module:function, a definition with --file, "
            "or an image with --image"
        )

    def _build_function_trainer(self, function: str) -> CustomTrainer:
        code = self.code
        is_reference = code or self.packaging == "reference"
        load: Callable[[str], Any] = str if is_reference else definition_file.import_function
        requirements = self.requirements
        if self.extra:
            if not requirements:
                raise InvalidRequestError("--extra needs a file with extras: add -r pyproject.toml or -r uv.lock")
            requirements = f"{requirements}[{','.join(self.extra)}]"
        if requirements and not requirements_file.is_requirements_file(requirements):
            raise InvalidRequestError(f"--requirements takes a .txt, pyproject.toml or uv.lock, got {requirements}")
        return CustomTrainer(
            func=load(function),
            func_args=parse_arguments(self.arg) or None,
            image=self.image,
            num_nodes=self.nodes,
            num_proc_per_node=self.procs_per_node,
            packages_to_install=[*filter(None, [requirements]), *(self.package or ())] or None,
            code_uri=self.code_uri,
            code=code[0] if code and len(code) == 1 and _is_project(code[0]) else code or None,
            env=parse_key_values("--env", self.env) or None,
            packaging=cast(Any, self.packaging),  # The trainer checks it.
        )

    def _build_container_trainer(self, image: str) -> CustomTrainerContainer:
        self._reject(
            ["arg", "package", "requirements", "extra", "code", "code_uri", "packaging"],
            "cannot be used without a training function; set arguments of an image by TrainerArgs in a definition",
        )
        return CustomTrainerContainer(
            image=image,
            num_nodes=self.nodes,
            num_proc_per_node=self.procs_per_node,
            env=parse_key_values("--env", self.env) or None,
        )

    def _reject(self, names: Sequence[str], reason: str) -> None:
        given = {name: getattr(self, name) for name in names}
        used = [f"--{name}".replace("_", "-") for name in names if given[name] and given[name] != getattr(Flags, name)]
        if used:
            raise InvalidRequestError(f"{', '.join(used)} {reason}")


@expand_flags
def submit(
    context: typer.Context,
    flags: Flags,
    wait: Wait = False,
    timeout: Timeout = None,
    attempts: Attempts = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Create nothing: ask the backend, and list the files that would travel.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Submit a training function, a container image or a definition from a file; print the name of the TrainJob."""
    request = flags.build_request(context.obj.client)
    if dry_run:
        return _print_files(context.obj.client, request)
    return _submit_and_print(context.obj.client, request, wait, timeout, output, attempts)


def initialize(
    context: typer.Context,
    dataset: Dataset = None,
    model: Model = None,
    option: Option = None,
    name: JobName = None,
    wait: Wait = False,
    timeout: Timeout = None,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Fetch a dataset or a model without training, so that many TrainJobs can use it."""
    if not dataset and not model:
        raise InvalidRequestError("initialize needs --dataset URI, --model URI, or both")
    client: TrainerClient = context.obj.client
    initializer = initializer_from_dict({"dataset": dataset, "model": model})
    request = client.build_request(initializer=initializer, options=_collect_options(name, option))
    return _submit_and_print(client, request, wait, timeout, output)


@expand_flags
def render(
    context: typer.Context,
    flags: Flags,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print the manifest that `submit` would create, without creating it."""
    client: TrainerClient = context.obj.client
    request = flags.build_request(client)
    rendered = client.render(request)
    if output is OutputFormat.JSON:
        print_json(rendered)
    else:
        print_yaml(rendered)
    if request.policy.reuse is not None:
        from trainer_core.client import reuse  # Loads the modules of HTTP.

        known = reuse.compute_key(client, request)
        line = f"key {known.key}" if known.key else f"no key, because not all is known: {'; '.join(known.unknown)}"
        print(f"trainjob: Reuse: {line}", file=sys.stderr)


def print_job(
    client: TrainerClient, ref: TrainJobRef, wait: bool, timeout: float | None, output: OutputFormat, attempts: int = 1
) -> int:
    """Print the name or ref of a TrainJob that was created, or wait for it; return the exit code."""
    if wait:
        return wait_and_print(client, ref, timeout, output, attempts)
    if output is OutputFormat.JSON:
        print_json(ref.to_dict())
    else:
        print(ref.name)
    return exit_codes.OK


def wait_and_print(
    client: TrainerClient, ref: TrainJobRef, timeout: float | None, output: OutputFormat, attempts: int = 1
) -> int:
    """Wait for a TrainJob and its next attempts, print the result or failure, and return the exit code."""
    rules = RestartRules(max_restarts=attempts - 1, delay=0.0)
    for attempt in client.attempts(ref, timeout=timeout, rules=rules):
        if attempt.ref != ref:
            print(f"trainjob: TrainJob {ref.name} is Failed; {attempt.ref.name} is the next attempt", file=sys.stderr)
        ref = attempt.ref
        try:
            outcome = progress.wait_with_progress(attempt)
        except KeyboardInterrupt:
            print(
                f"trainjob: TrainJob {ref.name} is still running; wait for it again with `trainjob wait {ref.name}`",
                file=sys.stderr,
            )
            raise
    if output is OutputFormat.JSON:
        print_json(outcome.to_dict())
    elif outcome.succeeded:
        print(f"{ref.name} Complete {outcome.result if outcome.result is not None else ''}".rstrip())
    if outcome.missing_result:
        print(f"trainjob: TrainJob {ref.name}: {outcome.missing_result}", file=sys.stderr)
    if not outcome.succeeded:
        _print_cause(outcome.diagnosis)
        print(f"trainjob: {failure_message(outcome)}{_suggest(outcome.diagnosis)}", file=sys.stderr)
    return exit_codes.OK if outcome.succeeded else exit_codes.FAILED


def _suggest(diagnosis: Diagnosis | None) -> str:
    """Return what to do about a module or file that the job has not found, and that the project here has."""
    reason = diagnosis.reason if diagnosis else ""
    missing = re.search(r"No module named '([\w.]+)'", reason)
    named = requirements_file.suggest_requirements(missing[1], Path.cwd()) if missing else None
    if file := re.search(r"No such file or directory: '/*(.+)'", reason):
        parts = Path(file[1]).parts  # The job has a project in another folder.
        here = next((path for path in (Path(*parts[i:]) for i in range(len(parts))) if path.exists()), None)
        if here:
            named = (
                f"{here} is here and did not travel (`submit --dry-run` lists what does): add --code . --code {here}, "
                f"also where an ignore file names it, or fetch it by --dataset {here.absolute().parent.as_uri()}"
            )
    return f"; {named}" if named else ""


def _print_files(client: TrainerClient, request: TrainJobRequest) -> int:
    client.dry_run(request)
    code = request.work.trainer.code if request.work.trainer else None
    project = code.project if code else None
    if project and not project.archive:
        print(f"trainjob: code: {project.files} files, which are already at {project.uri}", file=sys.stderr)
        return exit_codes.OK
    for path, content in sorted(read_files(project.model_dump()).items() if project else ()):
        print(f"{format_size(len(content)):>12}  {path}")
    return exit_codes.OK


def _print_cause(diagnosis: Diagnosis | None) -> None:
    """Print the traceback of a failure; without one, the last lines of the log, such as the messages of pip."""
    if diagnosis is None:
        return
    if diagnosis.traceback:
        print(diagnosis.traceback, file=sys.stderr)
        return
    for line in diagnosis.log_tail:
        if (text := format_log_line(line)) is not None:
            print(text, file=sys.stderr)


def _submit_and_print(
    client: TrainerClient,
    request: TrainJobRequest,
    wait: bool,
    timeout: float | None,
    output: OutputFormat,
    attempts: int = 1,
) -> int:
    if timeout is not None and not wait:
        raise InvalidRequestError(
            "--timeout needs --wait; to limit the runtime of the job, set active_deadline_seconds in a definition"
        )
    if attempts > 1 and not wait:
        raise InvalidRequestError("--attempts needs --wait: a failure is noticed by who waits for the TrainJob")
    check_restarts(request)
    if attempts > 1 and request.context.literal_secrets:
        raise InvalidRequestError(
            "--attempts: the tokens of the definition are not stored for the next attempt; give references to secrets"
        )
    created: list[bool] = []
    trace = os.environ.get("TRACEPARENT", "")
    if re.fullmatch(TRACEPARENT_PATTERN, trace):
        request = request.with_fields(traceparent=trace)
    ref = client.submit(request, before_create=lambda: created.append(True))
    if ref.reused:
        return print_job(client, ref, wait, timeout, output)
    if not created:
        print(f"trainjob: {describe_existing(ref.name, client.observe(ref).status)}", file=sys.stderr)
    project = request.work.trainer.code.project if request.work.trainer and request.work.trainer.code else None
    if project is not None:
        print(f"trainjob: code: {project.files} files, {format_size(project.size)}", file=sys.stderr)
    if request.policy.restart_policy is not None:
        print(f"trainjob: RestartPolicy: {_describe_level(client, ref.name, wait)}", file=sys.stderr)
    run = client.get_run(ref) if client.runs.is_tracked(ref) else None
    if run is not None:
        print(f"trainjob: run {run.url}", file=sys.stderr)
    return print_job(client, ref, wait, timeout, output, attempts)


def _describe_level(client: TrainerClient, name: str, wait: bool) -> str:
    """Return who starts the training again after a failure."""
    if client.backend.restarts_in_place:
        return f"restarts are made by the {client.backend.name} backend"
    if wait:
        return "restarts are made by this command, while it waits"
    return f"restarts are made by who waits, and there is none without it: `trainjob wait {name}`"


def _collect_options(name: str | None, option: list[str] | None) -> list[Any]:
    return definition_file.collect_options({"name": name, "options": parse_options(option)})


def _is_project(code: str) -> bool:
    """Return whether a --code is a project and not a path or pattern relative to the working directory."""
    return code.startswith("git+") or Path(code).is_dir()
