"""Behaviour that requires a real cluster: pods, images, restarts, cleanup and watches."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timezone

import pytest

from trainer_core.definition.options import Suspend
from trainer_core.k8s import pod_state, resources
from trainer_core.model.jobs import Category
from trainer_core.testing.case import Contract, wait_for_status
from trainer_core.testing.training_functions import raise_error, return_value, run_forever

# A cluster may pull images and add nodes.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.usefixtures("empty_namespace")]

_JOBS = 20
#: Seconds to wait for a condition; the grace period of a pod is 30 seconds.
_TIMEOUT = 120.0
#: Kinds of objects that a TrainJob owns.
_OWNED = (resources.JOBSETS, resources.JOBS, resources.PODS, resources.SECRETS, resources.CONFIG_MAPS)


def wait_until(condition):
    end = time.monotonic() + _TIMEOUT
    while not condition() and time.monotonic() < end:
        time.sleep(0.5)
    assert condition()


class TestCluster(Contract):
    @pytest.fixture
    def api(self, case, client):
        return case.get_api(client)

    @staticmethod
    def list_pods(api, job):
        return [
            pod_state.parse_pod(raw)
            for raw in api.list(resources.PODS, label_selector=f"{pod_state.JOBSET_LABEL}={job}")
        ]

    def test_a_suspended_job_has_no_pods_and_a_resumed_one_has_new_ones(self, client, build_request, api):
        client.submit(build_request(run_forever))
        wait_for_status(client, "job", "Running")
        (first,) = self.list_pods(api, "job")

        client.suspend("job")
        wait_for_status(client, "job", "Suspended")
        wait_until(lambda: self.list_pods(api, "job") == [])

        client.resume("job")
        wait_for_status(client, "job", "Running")
        # Trainer may count the old pod as ready for a moment.
        wait_until(lambda: self.list_pods(api, "job"))
        (second,) = self.list_pods(api, "job")
        assert second.uid != first.uid

    def test_a_missing_image_is_diagnosed_within_a_minute(self, client, build_request):
        started = time.monotonic()
        outcome = client.wait(client.submit(build_request(return_value, image="localhost:1/there-is-no-such-image:0")))
        assert time.monotonic() - started < 60
        assert outcome.diagnosis.category is Category.IMAGE
        assert "there-is-no-such-image" in outcome.diagnosis.reason

    def test_a_crash_loop_is_diagnosed_within_ten_seconds_of_the_second_crash(self, client, build_request, api):
        ends = []

        def record_crashes(_):
            containers = [pod.main_container for pod in self.list_pods(api, "job")]
            crashed = sum(container.crash_count for container in containers) >= 2
            ends.extend(
                container.latest_termination.finished_at
                for container in containers
                if crashed and container.latest_termination
            )

        begin = datetime.now(timezone.utc)
        ref = client.submit(build_request(raise_error, {"reason": "no luck"}))
        # The clock of the cluster may differ, and its timestamps are whole seconds.
        clock_offset = client.get_job("job").creation_timestamp - begin
        outcome = client.wait(ref, on_observation=record_crashes)
        diagnosed_at = datetime.now(timezone.utc) + clock_offset

        assert (outcome.diagnosis.category, outcome.diagnosis.reason) == (Category.USER_CODE, "KeyError: 'no luck'")
        assert ends, "the job was diagnosed before its second crash"
        assert (diagnosed_at - ends[0]).total_seconds() < 10

    def test_deleting_a_job_deletes_its_objects(self, client, build_request, api):
        client.wait(client.submit(build_request()))
        client.delete_job("job")

        def list_remaining():
            named = [f"{kind.kind} {raw['metadata']['name']}" for kind in _OWNED for raw in api.list(kind)]
            return [one for one in named if f"{one}-".split()[1].startswith("job-")]

        # The garbage collector deletes owned objects soon after the job.
        wait_until(lambda: list_remaining() == [])

    def test_one_watch_serves_waits_for_many_jobs(self, client, build_request):
        refs = [client.submit(build_request(name=f"job-{number}", options=[Suspend()])) for number in range(_JOBS)]
        before = threading.active_count()
        with ExitStack() as stack:
            followers = [stack.enter_context(client.follow(ref)) for ref in refs]
            assert {follower.next_observation(_TIMEOUT).status for follower in followers} <= {"Created", "Suspended"}
            assert threading.active_count() - before <= 1

    def test_concurrent_waits_return_the_result_of_each_job(self, client, build_request):
        refs = [
            client.submit(build_request(return_value, {"value": number}, name=f"job-{number}"))
            for number in range(_JOBS)
        ]
        with ThreadPoolExecutor(_JOBS) as waiters:
            assert [outcome.result for outcome in waiters.map(client.wait, refs)] == list(range(_JOBS))
