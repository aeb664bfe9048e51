r"""Let a compiled pipeline run again and again: a recurring run, deleted and created anew by its name.

    python pipelines/schedule.py pipelines/retrain_scheduled.yaml --name retrain-digits --cron "0 0 3 * * *" \
        --host https://kubeflow.example/pipeline --namespace team-a --set dataset_uri=s3://data/digits

KFP cannot change a recurring run: whoever runs this again, for instance after each release, replaces it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PAGE = 100
_FIELDS = 6


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
    """Replace the recurring run of a name, and return the id of the new one.

    Missed times are not made up for, and one run goes at a time. Tasks are cached as the pipeline says.

    Args:
        client: A `kfp.Client`.
        pipeline: The compiled pipeline: a new version is run after the next call, not before.
        name: Of the recurring run.
        cron: Six fields, seconds first: ``0 0 3 * * *`` is every night at three, UTC.
        arguments: Of the pipeline.
        experiment: Where its runs are shown.
        namespace: Of the profile, on a multi-user installation.
        service_account: As whom its pods run; None for the installation's default.

    Raises:
        ValueError: The schedule has not six fields.
    """
    if len(cron.split()) != _FIELDS:
        raise ValueError(f"cron {cron!r} must have six fields, seconds first, as in '0 0 3 * * *'")
    place = client.create_experiment(name=experiment, namespace=namespace)
    old = [run.recurring_run_id for run in _all(client, place.experiment_id, namespace) if run.display_name == name]
    for recurring_run_id in old:
        client.delete_recurring_run(recurring_run_id)
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
    return str(made.recurring_run_id)


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
    """Schedule what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pipeline", type=Path, help="compiled pipeline")
    parser.add_argument("--name", required=True, help="of the recurring run")
    parser.add_argument("--cron", required=True, help="six fields, seconds first: '0 0 3 * * *'")
    parser.add_argument("--host", help="of KFP's API (default: as kfp finds it)")
    parser.add_argument("--namespace", help="of the profile")
    parser.add_argument("--experiment", default="Default")
    parser.add_argument("--service-account")
    parser.add_argument("--set", type=_argument, action="append", default=[], metavar="NAME=VALUE", dest="arguments")
    given = parser.parse_args()

    from kfp.client import Client  # Half a second: not for --help.

    client = Client(host=given.host, namespace=given.namespace or "kubeflow")
    options = {"experiment": given.experiment, "namespace": given.namespace, "service_account": given.service_account}
    print(schedule(client, given.pipeline, given.name, given.cron, dict(given.arguments), **options))


if __name__ == "__main__":
    main()
