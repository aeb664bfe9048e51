r"""Create the recurring run of a compiled pipeline, or replace the one of the same name.

    python pipelines/schedule.py pipelines/retrain_scheduled.yaml --name retrain-digits --cron "0 0 3 * * *" \
        --host https://kubeflow.example/pipeline --namespace team-a --set dataset_uri=s3://data/digits

KFP has no call that changes a recurring run. Run this again after each release: it creates the new recurring run first
and deletes the old ones of that name afterwards, so that a failure never leaves the pipeline without a schedule.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PAGE = 100
_FIELDS = 6


class ScheduleError(RuntimeError):
    """KFP kept an earlier recurring run of the same name."""


def schedule(
    client: Any,
    pipeline: Path,
    name: str,
    cron: str,
    arguments: Mapping[str, Any],
    *,
    experiment: str = "Default",
    namespace: str | None = None,
    service_account: str | None = None,
) -> str:
    """Create a recurring run, delete the earlier ones of the same name, and return the id of the new one.

    The recurring run skips missed times and has at most one run at a time. Its tasks use the caching options of the
    pipeline.

    Args:
        client: A `kfp.Client`.
        pipeline: File of the compiled pipeline. The recurring run keeps its content: call this again for a new version.
        name: Name of the recurring run.
        cron: Six fields, seconds first: ``0 0 3 * * *`` is every night at three, UTC.
        arguments: Pipeline parameters.
        experiment: Experiment of the runs.
        namespace: Namespace of the profile, on a multi-user installation.
        service_account: Service account of the run's pods; None for the installation's default.

    Raises:
        ValueError: The cron expression does not have six fields.
        ScheduleError: KFP did not delete an earlier recurring run of this name, so the pipeline now runs twice.
    """
    if len(cron.split()) != _FIELDS:
        raise ValueError(f"cron {cron!r} must have six fields, seconds first, as in '0 0 3 * * *'")
    place = client.create_experiment(name=experiment, namespace=namespace)
    old = [run.recurring_run_id for run in _all(client, place.experiment_id, namespace) if run.display_name == name]
    # The new one first: if KFP refuses it, the old one still runs the pipeline tonight.
    made = client.create_recurring_run(
        experiment_id=place.experiment_id,
        job_name=name,
        cron_expression=cron,
        max_concurrency=1,
        no_catchup=True,
        params=dict(arguments),
        pipeline_package_path=str(pipeline),
        service_account=service_account,
    )
    _delete(client, name, old, new=str(made.recurring_run_id))
    return str(made.recurring_run_id)


def _delete(client: Any, name: str, old: Sequence[str], new: str) -> None:
    failed = []
    for recurring_run_id in old:
        try:
            client.delete_recurring_run(recurring_run_id)
        except Exception as error:  # noqa: BLE001 - whatever KFP's client raises: the other ones must go all the same
            failed.append(f"{recurring_run_id} ({' '.join(str(error).split())})")
    if failed:
        raise ScheduleError(
            f"recurring run {name!r}: {new} is created, but KFP did not delete {', '.join(failed)}: both run now; "
            "delete the old one, or run this again"
        )


def _all(client: Any, experiment_id: str, namespace: str | None) -> Iterator[Any]:
    token = ""
    while True:
        page = client.list_recurring_runs(
            page_token=token, page_size=_PAGE, experiment_id=experiment_id, namespace=namespace
        )
        yield from page.recurring_runs or ()
        token = page.next_page_token or ""
        if not token:
            return


def _argument(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise argparse.ArgumentTypeError(f"{text!r} must be name=value")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main() -> None:
    """Create the recurring run that the command line describes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pipeline", type=Path, help="compiled pipeline")
    parser.add_argument("--name", required=True, help="name of the recurring run")
    parser.add_argument("--cron", required=True, help="six fields, seconds first: '0 0 3 * * *'")
    parser.add_argument("--host", help="URL of KFP's API (default: as kfp.Client finds it)")
    parser.add_argument("--namespace", help="namespace of the profile")
    parser.add_argument("--experiment", default="Default")
    parser.add_argument("--service-account")
    parser.add_argument("--set", type=_argument, action="append", default=[], metavar="NAME=VALUE", dest="arguments")
    given = parser.parse_args()

    from kfp.client import Client  # Half a second: not for --help.

    client = Client(host=given.host, namespace=given.namespace or "kubeflow")
    options = {"experiment": given.experiment, "namespace": given.namespace, "service_account": given.service_account}
    try:
        print(schedule(client, given.pipeline, given.name, given.cron, dict(given.arguments), **options))
    except (ScheduleError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
