"""Subcommands for hyperparameter searches: search, searches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import redact
from trainer_core.base.validation import list_names
from trainer_core.cli import exit_codes
from trainer_core.cli.output import OutputFormat, OutputOption, print_json, print_table
from trainer_core.client import TrainerClient
from trainer_core.frontend import definition_file
from trainer_core.search import tables, template as templates
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.driver import SearchDriver, SearchState
from trainer_core.search.parameters import to_text
from trainer_core.search.results import OptimizationJob, Trial

#: Columns of the table of a search that is not printed on a terminal.
_WIDTH = 80
_KEYS = ("name", "trial", "search_space", "objectives", "trial_config", "algorithm", "stop")


def search(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="Definition of a search in YAML, or the name of a search.")
    ],
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Drive the search to its end. Ctrl-C leaves its trials running.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the search and its trials.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="End the search and delete its TrainJobs.")] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="[-]COLUMN",
            help="Sort trials by number, value, or a parameter, which is param.NAME if it has one of these names; - "
            "reverses.",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> int:
    """Start or continue a hyperparameter search from a file, or show one by its name."""
    client: TrainerClient = context.obj.client
    is_file = bool(Path(source).suffix) or source == "-"
    if is_file and (cancel or delete):
        raise InvalidRequestError("--cancel and --delete take the name of a search, not a file")
    if cancel or delete:
        (client.searches.delete_job if delete else client.searches.cancel)(source)
        return exit_codes.OK
    with open_search(client, source) if is_file else client.searches.find(source) as driver:
        state = driver.step(create=is_file or wait)
        if wait and state.outcome is None:
            driver.run(on_change=_ProgressLine(driver).print)
            state = driver.step()
        _print_search(driver, state, sort, output)
    is_failed = state.outcome is not None and not state.outcome.succeeded
    return exit_codes.FAILED if is_failed else exit_codes.OK


def searches(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the hyperparameter searches, newest first."""
    client: TrainerClient = context.obj.client
    rows = [_build_row(job) for job in client.searches.list_jobs()]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    print_table(["NAME", "STATUS", "TRIALS", "BEST"], [[str(value) for value in row.values()] for row in rows])


class _ProgressLine:
    """Prints a line on standard error each time that the table of a search has changed."""

    def __init__(self, driver: SearchDriver) -> None:
        self._driver, self._last = driver, ""

    def print(self, state: SearchState) -> None:
        line = tables.describe(self._driver.definition, state.table)
        if line != self._last:
            self._last = line
            print(f"search {self._driver.name}: {line}", file=sys.stderr, flush=True)


def open_search(client: TrainerClient, path: str) -> SearchDriver:
    """Open the search of a file, which creates nothing yet."""
    data = definition_file.read_definition(path)
    unknown = [key for key in data if key not in _KEYS]
    if unknown or "trial" not in data or data.get("search_space") is None:
        problem = f"the unknown key {list_names(unknown)}" if unknown else "no trial: or no search_space:"
        raise InvalidRequestError(f"{path} has {problem}; a search has {', '.join(_KEYS)}")
    definition = SearchDefinition.parse(**{key: data[key] for key in _KEYS[2:] if data.get(key) is not None})
    name = data.get("name") or (Path(path).stem if path != "-" else None)
    if not isinstance(data["trial"], dict):
        raise InvalidRequestError(
            f"{path}: trial must be a mapping such as {{trainer: {{func: train:fit}}}}, got {redact(data['trial'])}"
        )
    trial = {**data["trial"], "name": name}
    trial["trainer"] = templates.add_example(trial.get("trainer"), definition.space)
    folder = Path(path).absolute().parent if path != "-" else None
    request = definition_file.build_definition_request(client, trial, folder)
    return client.searches.open_request(request, definition)


def _print_search(driver: SearchDriver, state: SearchState, sort: str | None, output: OutputFormat) -> None:
    trials = tables.build_trials(driver.definition, state.table)
    if output is OutputFormat.JSON:
        best = tables.build_result(driver.definition, state.table)
        print_json(
            {
                "name": driver.name,
                "status": tables.get_status(state.table),
                "reason": state.table.reason,
                "best": None if best is None else {"trial": best.trial, "values": best.values, "value": best.value},
                "trials": [_to_cells(trial) for trial in _sort(trials, sort)],
            }
        )
        return
    rows = []
    for trial in _sort(trials, sort):
        numbers = ["" if each is None else f"{each:.6g}" for each in (trial.value, trial.step)]
        short = {
            name: f"{each:.6g}" if isinstance(each, float) else to_text(each) for name, each in trial.values.items()
        }
        text = " ".join(f"{name}={each}" for name, each in short.items())
        text = f"{text}; {trial.reason}" if trial.reason else text
        rows.append([str(trial.number), trial.status, *numbers, trial.name, text])
    print_table(["TRIAL", "STATUS", "VALUE", "STEP", "TRAINJOB", "PARAMETERS"], rows, width=_WIDTH)
    print(
        f"search {driver.name} is {tables.get_status(state.table)}: {tables.describe(driver.definition, state.table)}"
    )


def _to_cells(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "status": trial.status,
        "value": trial.value,
        "step": trial.step,
        "parameters": trial.values,
        "job": trial.name,
        "reason": trial.reason,
    }


def _sort(trials: list[Trial], sort: str | None) -> list[Trial]:
    if sort is None:
        return trials
    column = sort.removeprefix("-")
    columns = tables.name_columns(trials[0].values if trials else (), ("number", "value"))
    known = ["number", "value", *columns.values()]
    if column not in known:
        raise InvalidRequestError(f"--sort {column!r} is no column; use one of {', '.join(known)}")

    def read(trial: Trial) -> Any:
        named = {columns[name]: value for name, value in trial.values.items()}
        value = {"number": trial.number, "value": trial.value, **named}.get(column)
        is_number = isinstance(value, (int, float))
        return value is None, not is_number, value if is_number else str(value)

    known_values = [trial for trial in trials if not read(trial)[0]]
    return sorted(known_values, key=read, reverse=sort.startswith("-")) + [each for each in trials if read(each)[0]]


def _build_row(job: OptimizationJob) -> dict[str, Any]:
    ended = sum(trial.status in ("Complete", "Stopped early", "Failed", "Lost") for trial in job.trials)
    values = [trial.value for trial in job.trials if trial.status == "Complete" and trial.value is not None]
    best = None
    if values:
        objective = job.objectives[0]
        best = min(values) if objective.is_better(0, 1) else max(values)
    return {"name": job.name, "status": job.status, "trials": f"{ended} of {job.total}", "best": best}
