"""Subcommands for existing TrainJobs, such as list, compare, get, wait, logs, checkpoints, delete and reap.

Each is a short function: the options, one or two calls of `TrainerClient`, and the output as a table or JSON. Failures
are raised; `cli.app` prints them in one line and chooses the exit code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from trainer_core.base import naming, validation
from trainer_core.base.errors import InvalidRequestError, JobEndedError, JobNotFoundError
from trainer_core.base.text import format_size
from trainer_core.cli.output import OutputFormat, OutputOption, format_time, print_json, print_table
from trainer_core.client import TrainerClient
from trainer_core.frontend import job_table, pending_cancellations
from trainer_core.k8s import kfp_runs
from trainer_core.lifecycle.next_attempt import split_name
from trainer_core.model.config import ClusterConfig
from trainer_core.model.jobs import (
    COMPLETE,
    FAILED,
    KFP_RUN_LABEL,
    SEARCH_LABEL,
    SEARCH_RECORD_LABEL,
    STATUSES,
    TrainJob,
    TrainJobRef,
    describe_status,
)
from trainer_core.model.logs import merge_streams

#: Default columns of `trainjob list`.
_COLUMNS = "name,status,runtime,nodes,created,reason"

#: What `trainjob get` prints of a TrainJob, beside its arguments.
_DETAILS = (
    *("partition", "function", "code", "packages", "dag", "run", "task", "dataset", "model"),
    *("memory", "restarts", "resumed_from", "step", "silent"),
)

_ENDED = (COMPLETE, FAILED)

NameArgument = Annotated[str, typer.Argument(help="Name of the TrainJob.")]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        "-c",
        metavar="COLUMN,…",
        help="Columns: name, status, runtime, nodes, created, started, finished, duration, reason, partition; and, for "
        "three requests for each TrainJob, resumed_from, step (how far it came), silent, restarts, function, dag, run, "
        "task, dataset, model, code (digest), image, processes, packages, memory, variables (names), param.NAME (an "
        f"argument), metric.NAME and artifact.NAME. Default: {_COLUMNS}.",
    ),
]
Sort = Annotated[
    str | None, typer.Option(metavar="[-]COLUMN", help="Sort by a column; with - before it the largest first.")
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="List at most this many TrainJobs.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="List TrainJobs created since then: 90m, 24h, 7d, or an ISO 8601 date."),
]
Status = Annotated[
    list[str] | None,
    typer.Option(help="List TrainJobs with this status: Created, Running, Suspended, Complete, Failed; repeatable."),
]


def list_jobs(
    context: typer.Context,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    since: Since = None,
    status: Status = None,
    search: Annotated[
        str | None, typer.Option(metavar="NAME", help="List the TrainJobs of a hyperparameter search.")
    ] = None,
    partition: Annotated[str | None, typer.Option(metavar="KEY", help="List the TrainJobs of a partition.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the TrainJobs, newest first."""
    names = [job_table.check_column(name.strip()) for name in (columns or _COLUMNS).split(",")]
    sort_column = job_table.check_column((sort or "created").removeprefix("-"))
    earliest = _parse_time(since) if since else None
    client = _get_client(context)
    statuses = {_check_status(each) for each in status or STATUSES}
    jobs = client.list_jobs(labels=_build_search_label(search), partition=partition)
    jobs = [job for job in jobs if job.status in statuses and SEARCH_RECORD_LABEL not in job.labels]
    if earliest is not None:
        jobs = [job for job in jobs if job.creation_timestamp >= earliest]
    if sort is None:
        jobs = jobs[:limit]
    if job_table.needs_details([*names, sort_column]):
        details = [_read_details(client, job) for job in jobs]
    else:
        details = [job_table.JobDetails(job, {}, {}) for job in jobs]
    rows = [job_table.build_row(each) for each in details]
    if sort is not None:
        rows = job_table.sort_rows(rows, sort_column, descending=sort.startswith("-"))[:limit]
    if output is OutputFormat.TABLE:
        header = [_format_header(name) for name in names]
        print_table(header, [[_format_cell(row.get(name)) for name in names] for row in rows])
    elif columns is None:
        by_name = {job.name: job for job in jobs}
        print_json([by_name[row["name"]].to_dict() for row in rows])
    else:
        print_json([{name: _to_json(row.get(name)) for name in names} for row in rows])


def compare(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Names of two or more TrainJobs.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare the trials of a hyperparameter search.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also print what is equal.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print in what TrainJobs differ: function, code, files, arguments, packages, metrics, duration and more."""
    client = _get_client(context)
    names = [*(names or ()), *_list_trials(client, search)]
    if len(names) < 2 and search is not None:
        raise InvalidRequestError(f"search {search!r} has {len(names)} trials here; two or more can be compared")
    if len(names) < 2:
        given = repr(names[0]) if names else "none"
        raise InvalidRequestError(f"one TrainJob cannot be compared; name another one beside {given}, or a search")
    details = [job_table.read_details(client, name) for name in names]
    rows = job_table.compare_rows([job_table.build_row(each) for each in details], everything)
    rows.update(job_table.compare_files(details))
    if output is OutputFormat.JSON:
        values = {column: list(map(_to_json, row)) for column, row in rows.items()}
        print_json({"names": names, "rows": values})
    else:
        cells = [[column, *map(_format_cell, row)] for column, row in rows.items()]
        print_table(["", *names], cells, folded=len(names))


def get(context: typer.Context, name: NameArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show a TrainJob, its steps and its result."""
    client = _get_client(context)
    details = job_table.read_details(client, name)
    job, outcome = details.job, details.outcome
    if output is OutputFormat.JSON:
        print_json({**job.to_dict(), "outcome": outcome.to_dict() if outcome else None})
        return
    status = describe_status(job.status, job.reason)
    row = (job.name, status, job.runtime.name, format_time(job.creation_timestamp), job.reason)
    print_table(("NAME", "STATUS", "RUNTIME", "CREATED", "REASON"), [row])
    print()
    values = job_table.build_row(details)
    params = [column for column in values if column.startswith(job_table.PARAM)]
    for column in (*_DETAILS, *params):
        if column in values:
            print(f"{column}: {_format_cell(values[column])}")
    if details.request and details.request.context.owner:
        attempts = sorted(client.find_jobs(details.request), key=lambda each: (each.generation or "", each.attempt))
        print(f"attempts: {', '.join(f'{each.name} {each.status}' for each in attempts)}")
    print()
    steps = [
        (step.name, step.status, step.exit_code, format_time(step.started), format_time(step.finished), step.pod_name)
        for step in job.steps
    ]
    print_table(("STEP", "STATUS", "EXIT CODE", "STARTED", "FINISHED", "POD OR PROCESS"), steps)
    if outcome is None:
        return
    if outcome.succeeded and outcome.result is None and outcome.missing_result:
        print(f"\nresult: {outcome.missing_result}")
    elif outcome.succeeded:
        print(f"\nresult: {outcome.result}")
        if outcome.missing_result:
            print(f"note: {outcome.missing_result}")
    if outcome.resource_use is not None:
        print(f"\nresources: {outcome.resource_use}")


def wait(
    context: typer.Context,
    name: NameArgument,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Maximum time to wait, in seconds; default: no limit.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Wait until a TrainJob has ended; print its progress and its result."""
    client = _get_client(context)
    from trainer_core.cli.submit import wait_and_print  # It loads the modules of definitions.

    return wait_and_print(client, client.get_job_ref(name), timeout, output)


def logs(
    context: typer.Context,
    name: NameArgument,
    step: Annotated[
        str, typer.Option("--step", "-s", help="Name of the step, such as node-0 or dataset-initializer.")
    ] = "node-0",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the TrainJob has ended.")
    ] = False,
    all_steps: Annotated[
        bool, typer.Option("--all", "-a", help="Print the logs of all steps, each line with the name of its step.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print each line as it is, also those that programs read.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print the log of one step or of all steps, with progress as text."""
    client = _get_client(context)
    steps = [each.name for each in client.get_job(name).steps] if all_steps else [step]
    streams = {each: client.get_job_logs(name, each, follow, raw=raw) for each in steps}
    # Interleaved when logs are followed, otherwise step after step.
    is_merged = follow and len(streams) > 1
    pairs = merge_streams(streams) if is_merged else ((each, line) for each in steps for line in streams[each])
    for source, line in pairs:
        if output is OutputFormat.JSON:
            print_json({"step": source, "line": line})
        else:
            print(f"[{source}] {line}" if all_steps else line, flush=follow)


def events(context: typer.Context, name: NameArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the events of a TrainJob."""
    job_events = _get_client(context).get_job_events(name)
    if output is OutputFormat.JSON:
        print_json([event.to_dict() for event in job_events])
        return
    print_table(
        ("TIME", "REASON", "OBJECT", "MESSAGE"),
        [
            (format_time(event.event_time), event.reason, event.involved_object_name, event.message)
            for event in job_events
        ],
    )


def retry(
    context: typer.Context,
    name: NameArgument,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the TrainJob has ended.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Start the next attempt of a failed TrainJob, from its last checkpoint if it has one; print its name."""
    client = _get_client(context)
    from trainer_core.cli.submit import print_job  # It loads the modules of definitions.

    return print_job(client, client.retry(name), wait, None, output)


def suspend(context: typer.Context, name: NameArgument) -> None:
    """Stop the processes of a TrainJob but keep the TrainJob, to resume it later. Exits with 1 if it has ended."""
    client = _get_client(context)
    ref, status = _read_unfinished(client, name, "suspended")
    client.suspend(ref)
    print(f"{name} suspended: it was {status}")


def resume(context: typer.Context, name: NameArgument) -> None:
    """Start a suspended TrainJob again, from its last checkpoint if it has one. Exits with 1 if it has ended."""
    client = _get_client(context)
    ref, status = _read_unfinished(client, name, "resumed")
    client.resume(ref)
    print(f"{name} resumed: it was {status}")


def cancel(context: typer.Context, name: NameArgument) -> None:
    """Stop a TrainJob permanently; its logs are kept."""
    client = _get_client(context)
    ref, status = _read_status(client, name)
    client.cancel(ref)
    print(f"{name} has already ended: it is {status}" if status in _ENDED else f"{name} cancelled: it was {status}")


def checkpoints(
    context: typer.Context,
    name: NameArgument,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Delete all except the newest and the best one, and print the deleted ones."),
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the checkpoints of a TrainJob and of its earlier attempts, oldest first."""
    client = _get_client(context)
    found = client.prune_checkpoints(name) if prune else client.list_checkpoints(name)
    if output is OutputFormat.JSON:
        print_json([each.to_dict() for each in found])
        return
    if prune and not found:
        kept = len(client.list_checkpoints(name))
        print(f"nothing to delete: {name} has {kept} checkpoint{'' if kept == 1 else 's'}, the newest and the best one")
        return
    rows = [
        (
            each.step,
            format_size(each.size),
            format_time(each.saved),
            each.job,
            ", ".join(word for word in ("newest", "best", "loaded") if getattr(each, word)),
            ", ".join(f"{name}={value:.6g}" for name, value in each.metrics.items()),
        )
        for each in found
    ]
    print_table(("STEP", "SIZE", "SAVED", "JOB", "WHICH", "METRICS"), rows)


def reap(
    context: typer.Context,
    runs_in: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Also delete TrainJobs of KFP runs that were deleted or terminated, according to the Workflows of "
            "NAMESPACE.",
        ),
    ] = None,
    alive: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Also delete TrainJobs of KFP runs other than this one; repeatable."),
    ] = None,
    checkpoints_at: Annotated[
        str | None,
        typer.Option(
            "--checkpoints",
            metavar="URI",
            help="Also delete the checkpoints at URI (file:// or s3://) whose ttl (option Checkpoints) is over.",
        ),
    ] = None,
) -> None:
    """Delete TrainJobs whose retention time (option DeleteAfter) is over; print their names.

    Cancel TrainJobs whose Airflow task was ended while the backend was away, as recorded in TRAINJOB_HOME.
    Before, end the MLflow runs of TrainJobs that have ended or were deleted while no process waited for them.
    """
    try:
        _get_client(context).end_abandoned_runs(lambda run: print(f"run of {run.job}: {run.status} {run.url}"))
    finally:  # A tracking server that is away keeps no job: the error follows.
        _delete_expired(context, runs_in, alive, checkpoints_at)


def _delete_expired(
    context: typer.Context, runs_in: str | None, alive: list[str] | None, checkpoints_at: str | None
) -> None:
    """Delete expired checkpoints and jobs, and jobs of KFP runs that are gone; print them."""
    if checkpoints_at is not None:
        validation.check_place_uri("--checkpoints", checkpoints_at)
        from trainer_core.client import saved_checkpoints

        for folder in saved_checkpoints.remove_expired(checkpoints_at):
            print(folder)
    client = _get_client(context)
    for name, error in pending_cancellations.cancel_pending(client):
        what = "is cancelled, as its task has asked" if error is None else f"is still to be cancelled: {error}"
        print(f"trainjob: TrainJob {name} {what}", file=sys.stderr)
    for name in client.reap():
        print(name)
    if runs_in is None and not alive:
        return
    # List the jobs first: a run that starts after the list of runs has no job in the list of jobs.
    jobs = [job for job in client.list_jobs() if KFP_RUN_LABEL in job.labels]
    runs = {job.labels[KFP_RUN_LABEL] for job in jobs}
    print(f"trainjob: looking at {len(jobs)} TrainJobs of {len(runs)} KFP runs", file=sys.stderr)
    for job in kfp_runs.find_orphaned_jobs(jobs, _list_runs(context, runs_in, alive, runs)):
        # Delete by uid: the name may belong to another job by now.
        client.delete_job(TrainJobRef(client.config.backend, str(job.namespace), job.name, str(job.uid)))
        print(job.name)


def _list_runs(
    context: typer.Context, namespace: str | None, alive: list[str] | None, of_jobs: Collection[str]
) -> kfp_runs.PipelineRuns:
    if namespace is None:
        return kfp_runs.PipelineRuns(alive or ())
    if alive:
        raise InvalidRequestError("--runs-in and --alive cannot be used together; use one of them")
    config = context.obj.config
    if not isinstance(config, ClusterConfig):
        raise InvalidRequestError(f"--runs-in: the {config.backend} backend has no Workflows; use --alive")
    return kfp_runs.list_pipeline_runs(config, namespace, of_jobs)


def delete(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Names of TrainJobs.")] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="All that have ended, except the trials of searches.")
    ] = False,
) -> None:
    """Delete TrainJobs with their logs and files. Exits with 3, and deletes none, if one does not exist."""
    if bool(names) == finished:
        raise InvalidRequestError("delete takes either the names of TrainJobs or --finished")
    client = _get_client(context)
    for ref in _find_finished(client) if finished else [*map(client.get_job_ref, names or ())]:
        client.delete_job(ref)
        print(f"{ref.name} deleted")


def _find_finished(client: TrainerClient) -> Iterator[TrainJobRef]:
    """Yield the TrainJobs that have ended, without trials and without those that are started again."""
    jobs = client.list_jobs()
    attempts = [split_name(job.name) for job in jobs]
    for job in jobs:
        if job.status not in _ENDED or SEARCH_LABEL in job.labels:
            continue
        with suppress(JobNotFoundError):  # Another process has deleted it since.
            ref = client.get_job_ref(job.name)  # Another TrainJob may have the name by now.
            outcome = client.observe(ref).outcome
            restarts = outcome and outcome.restarts
            base, attempt = split_name(job.name)
            is_last = not any(other == base and number > attempt for other, number in attempts)
            if restarts and restarts.following and is_last:
                print(f"trainjob: {job.name} is kept, as its RestartPolicy starts it again", file=sys.stderr)
            elif outcome:
                yield ref


def _read_status(client: TrainerClient, name: str) -> tuple[TrainJobRef, str]:
    ref = client.get_job_ref(name)
    return ref, client.observe(ref).status


def _read_unfinished(client: TrainerClient, name: str, change: str) -> tuple[TrainJobRef, str]:
    ref, status = _read_status(client, name)
    if status in _ENDED:
        raise JobEndedError(
            f"TrainJob {ref.name!r} is {status} and cannot be {change}; continue a failed one with "
            f"`trainjob retry {ref.name}`"
        )
    return ref, status


def _read_details(client: TrainerClient, job: TrainJob) -> job_table.JobDetails:
    with suppress(JobNotFoundError):
        return job_table.read_details(client, job.name)
    return job_table.JobDetails(job, {}, {})


def _check_status(text: str) -> str:
    found = next((each for each in STATUSES if each.lower() == text.lower()), None)
    if found is None:
        raise InvalidRequestError(f"--status {text[:100]!r} is unknown; known are {', '.join(sorted(STATUSES))}")
    return found


def _parse_time(text: str) -> datetime:
    """Return the time that was so long ago (``90m``, ``24h``, ``7d``), or that an ISO 8601 text names."""
    units = {"m": "minutes", "h": "hours", "d": "days"}
    try:
        if match := re.fullmatch(r"([0-9]{1,6})([mhd])", text):
            return datetime.now(timezone.utc) - timedelta(**{units[match[2]]: int(match[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidRequestError(
            f"--since {text[:100]!r} is no time; write a duration such as 90m, 24h or 7d, or a date such as 2026-01-31"
        ) from None


def _format_header(column: str) -> str:
    """Return the heading of a column; names that a user chose stay as they are."""
    return column if "." in column else column.upper()


def _format_cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, str) and value.startswith("file:///"):
        return unquote(value.removeprefix("file://"))
    return f"{value:g}" if isinstance(value, float) else value


def _to_json(value: Any) -> Any:
    """Return a value for JSON: a time as ISO 8601, a duration in seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else value


def _build_search_label(name: str | None) -> dict[str, str] | None:
    """Return the label of the TrainJobs of a search, by its name or key."""
    if name is None:
        return None
    return {SEARCH_LABEL: naming.hash_owner_key(name if "/" in name else f"search/{name}")}


def _list_trials(client: TrainerClient, search: str | None) -> list[str]:
    jobs = client.list_jobs(labels=_build_search_label(search)) if search else []
    return [job.name for job in reversed(jobs) if SEARCH_RECORD_LABEL not in job.labels]


def _get_client(context: typer.Context) -> TrainerClient:
    client: TrainerClient = context.obj.client
    return client
