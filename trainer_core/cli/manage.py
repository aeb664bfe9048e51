"""Subcommands for TrainJobs that exist: look at them, wait for them, end them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from trainer_core.cli import exits
from trainer_core.cli.output import Format, Output, print_data, print_table, when
from trainer_core.cli.submit import finish
from trainer_core.client import TrainerClient
from trainer_core.cluster import runs
from trainer_core.configs import ClusterConfig
from trainer_core.interleave import interleaved
from trainer_core.jobs import TrainJob
from trainer_core.ref import TrainJobRef

__all__ = ["register"]

Name = Annotated[str, typer.Argument(help="Name of the TrainJob.")]


def register(app: typer.Typer) -> None:
    """Add the subcommands."""
    for name, command in _COMMANDS.items():
        app.command(name, epilog=exits.HELP)(command)


def list_jobs(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List the TrainJobs, newest first."""
    jobs = _client(context).list_jobs()
    if output is Format.JSON:
        print_data([job.to_dict() for job in jobs])
        return
    rows = [
        (job.name, job.status, job.runtime.name, job.num_nodes, when(job.creation_timestamp), job.reason)
        for job in jobs
    ]
    print_table(("NAME", "STATUS", "RUNTIME", "NODES", "CREATED", "REASON"), rows)


def get(context: typer.Context, name: Name, output: Output = Format.TABLE) -> None:
    """Show one TrainJob, its steps, and what it left."""
    client = _client(context)
    job = client.get_job(name)
    left = client.observe(name).outcome
    if output is Format.JSON:
        print_data({**job.to_dict(), "outcome": left.to_dict() if left else None})
        return
    print_table(("NAME", "STATUS", "RUNTIME", "CREATED", "REASON"), [_row(job)])
    print()
    steps = [(step.name, step.status, step.exit_code, when(step.started), when(step.finished)) for step in job.steps]
    print_table(("STEP", "STATUS", "EXIT CODE", "STARTED", "FINISHED"), steps)
    if left is not None and left.succeeded:
        print(f"\nresult: {left.result}")


def wait(
    context: typer.Context,
    name: Name,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait at most; as long as it takes if not given.")
    ] = None,
    output: Output = Format.TABLE,
) -> int:
    """Wait until a TrainJob has ended; show its progress."""
    client = _client(context)
    return finish(client, client.ref(name), timeout, output)


def logs(
    context: typer.Context,
    name: Name,
    step: Annotated[str, typer.Option("--step", "-s", help="Such as node-0 or dataset-initializer.")] = "node-0",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the TrainJob has ended.")] = False,
    every: Annotated[bool, typer.Option("--all", "-a", help="Of every step, with its name before each line.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Print the log of one step, or of all."""
    client = _client(context)
    steps = [each.name for each in client.get_job(name).steps] if every else [step]
    for source, line in _lines(client, name, steps, follow):
        if output is Format.JSON:
            print_data({"step": source, "line": line})
        else:
            print(f"[{source}] {line}" if every else line, flush=follow)


def events(context: typer.Context, name: Name, output: Output = Format.TABLE) -> None:
    """Print what happened to a TrainJob."""
    found = _client(context).get_job_events(name)
    if output is Format.JSON:
        print_data([event.to_dict() for event in found])
        return
    print_table(
        ("TIME", "REASON", "OBJECT", "MESSAGE"),
        [(when(event.event_time), event.reason, event.involved_object_name, event.message) for event in found],
    )


def suspend(context: typer.Context, name: Name) -> None:
    """End what runs of a TrainJob but keep it, to resume it later."""
    _client(context).suspend(name)


def resume(context: typer.Context, name: Name) -> None:
    """Start a suspended TrainJob again, from its beginning."""
    _client(context).resume(name)


def cancel(context: typer.Context, name: Name) -> None:
    """End a TrainJob for good; its logs stay."""
    client = _client(context)
    client.cancel(client.ref(name))


def reap(
    context: typer.Context,
    runs_in: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Delete also those whose KFP run is gone: deleted or terminated, as the Workflows of NAMESPACE tell.",
        ),
    ] = None,
    alive: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Delete also those of any KFP run but this; can be repeated."),
    ] = None,
) -> None:
    """Delete the TrainJobs that ended longer ago than their DeleteAfter says; print their names."""
    client = _client(context)
    for name in client.backend.reap():
        print(name)
    if runs_in is None and not alive:
        return
    # Jobs first: the run of a job that is seen has begun before it is asked for.
    jobs = client.list_jobs()
    for job in runs.orphans(jobs, _runs(context, runs_in, alive)):
        # By its uid: another job may have taken the name meanwhile.
        client.backend.delete(TrainJobRef(client.backend.name, str(job.namespace), job.name, str(job.uid)))
        print(job.name)


def _runs(context: typer.Context, namespace: str | None, alive: list[str] | None) -> runs.Runs:
    if namespace is None:
        return runs.Runs(alive or ())
    if alive:
        raise ValueError("--runs-in and --alive both say which runs there are; give one of them")
    config = context.obj.config
    if not isinstance(config, ClusterConfig):
        raise ValueError(f"--runs-in: the {config.backend} backend has no Workflows; give --alive")
    return runs.in_namespace(config, namespace)


def delete(context: typer.Context, name: Name) -> None:
    """Remove a TrainJob with everything it has. Gone already: that is fine."""
    _client(context).delete_job(name)


def _client(context: typer.Context) -> TrainerClient:
    client: TrainerClient = context.obj.client
    return client


def _lines(client: TrainerClient, name: str, steps: list[str], follow: bool) -> Iterator[tuple[str, str]]:
    """The lines of steps: as they come if followed, else those of one step after those of another."""
    sources = {step: client.get_job_logs(name, step, follow) for step in steps}
    if follow and len(sources) > 1:
        return interleaved(sources)
    return ((step, line) for step, lines in sources.items() for line in lines)


def _row(job: TrainJob) -> tuple[Any, ...]:
    return job.name, job.status, job.runtime.name, when(job.creation_timestamp), job.reason


_COMMANDS: dict[str, Callable[..., Any]] = {
    "list": list_jobs,
    "get": get,
    "wait": wait,
    "logs": logs,
    "events": events,
    "suspend": suspend,
    "resume": resume,
    "cancel": cancel,
    "delete": delete,
    "reap": reap,
}
