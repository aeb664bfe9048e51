"""Use of resources: reports in the log of each node, and the summary in the outcome."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from trainer_core.client import TrainerClient
from trainer_core.model.resource_use import parse_resource_report, strip_resource_report
from trainer_core.testing.case import Contract, Run, applies_to
from trainer_core.testing.training_functions import return_value, wait_for_resource_report

_OFTEN = {"TRAINJOB_RESOURCE_INTERVAL": "0.2"}


class ResourceReports(Contract):
    """Each node reports its use of processor, memory and GPUs."""

    @applies_to(reports_resource_use=True)
    def test_the_use_of_resources_is_in_the_outcome_and_in_lines_of_the_log(
        self, client: TrainerClient, run: Run
    ) -> None:
        outcome = run(wait_for_resource_report, env=_OFTEN)
        use = outcome.resource_use
        assert use is not None
        assert (use.nodes, use.gpus, use.gpu_hours) == (1, 0, 0.0)
        assert 0 < use.memory_peak <= use.memory_limit
        assert 0 <= use.cpu_percent <= 100
        assert client.observe("job").outcome == outcome
        lines = list(client.get_job_logs("job", raw=True))
        reports = [parse_resource_report(line) for line in lines]
        assert use.memory_peak in [report["memory"] for report in reports if report]
        assert [line for line in lines if strip_resource_report(line) is not None] == []
        assert list(client.get_job_logs("job")) == []

    @applies_to(reports_resource_use=True, runs_multiple_nodes=True)
    def test_every_node_reports_its_use_of_resources(self, run: Run) -> None:
        outcome = run(wait_for_resource_report, env=_OFTEN, num_nodes=2)
        assert outcome.resource_use is not None
        assert outcome.resource_use.nodes == 2

    @applies_to(reports_resource_use=False)
    def test_no_use_of_resources_is_reported(self, client: TrainerClient, run: Run) -> None:
        outcome = run(return_value, env=_OFTEN)
        assert (outcome.resource_use, list(client.get_job_logs("job"))) == (None, [])
