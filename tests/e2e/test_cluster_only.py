"""What only a cluster can show: pods, images, restarts, what a job leaves."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timezone

import pytest

from trainer_core.cluster import kinds, pods
from trainer_core.cluster.api import Api
from trainer_core.cluster.connect import connect
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.options import Suspend
from trainer_core.outcome import Category
from trainer_core.testing.case import Contract, reached
from trainer_core.testing.functions import fails, goes_on, returns

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("empty_namespace")]

_MANY = 20
#: Seconds to wait for what must happen: a pod may have 30 of them to end.
_PATIENCE = 120.0
#: Everything that comes of a TrainJob.
_OWNED = (kinds.JOBSETS, kinds.JOBS, kinds.PODS, kinds.SECRETS, kinds.CONFIG_MAPS)


def wait_until(condition):
    end = time.monotonic() + _PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.5)
    assert condition()


class TestCluster(Contract):
    @pytest.fixture
    def api(self, client):
        return Api(connect(KubernetesBackendConfig(namespace=client.backend.namespace)))

    @staticmethod
    def pods_of(api, job):
        return [pods.read(raw) for raw in api.list(kinds.PODS, labels=f"{pods.JOBSET_LABEL}={job}")]

    def test_a_suspended_job_has_no_pods_and_a_resumed_one_has_new_ones(self, client, ask, api):
        client.submit(ask(goes_on))
        reached(client, "job", "Running")
        (first,) = self.pods_of(api, "job")

        client.suspend("job")
        reached(client, "job", "Suspended")
        wait_until(lambda: self.pods_of(api, "job") == [])

        client.resume("job")
        reached(client, "job", "Running")
        # What Trainer counts as ready may be of before for a moment.
        wait_until(lambda: self.pods_of(api, "job"))
        (second,) = self.pods_of(api, "job")
        assert second.uid != first.uid

    def test_an_image_that_does_not_exist_is_told_within_a_minute(self, client, ask):
        started = time.monotonic()
        outcome = client.wait(client.submit(ask(returns, image="localhost:1/there-is-no-such-image:0")))
        assert time.monotonic() - started < 60
        assert outcome.diagnosis.category is Category.IMAGE
        assert "there-is-no-such-image" in outcome.diagnosis.reason

    def test_a_crash_loop_is_told_within_ten_seconds_of_the_second_crash(self, client, ask, api):
        ends = []

        def look(_):
            containers = [pod.main for pod in self.pods_of(api, "job")]
            crashed = sum(container.crashes for container in containers) >= 2
            ends.extend(container.last_end.finished for container in containers if crashed and container.last_end)

        begin = datetime.now(timezone.utc)
        ref = client.submit(ask(fails, {"reason": "no luck"}))
        # The cluster has a clock of its own, and says whole seconds of it.
        ahead = client.get_job("job").creation_timestamp - begin
        outcome = client.wait(ref, on_observation=look)
        told = datetime.now(timezone.utc) + ahead

        assert (outcome.diagnosis.category, outcome.diagnosis.reason) == (Category.USER_CODE, "KeyError: 'no luck'")
        assert ends, "it was told before it crashed twice"
        assert (told - ends[0]).total_seconds() < 10

    def test_deleting_leaves_nothing(self, client, ask, api):
        client.wait(client.submit(ask()))
        client.delete_job("job")

        def left():
            named = [f"{kind.kind} {raw['metadata']['name']}" for kind in _OWNED for raw in api.list(kind)]
            return [one for one in named if f"{one}-".split()[1].startswith("job-")]

        # Its name is free; the last of what it owned goes with it, soon.
        wait_until(lambda: left() == [])

    def test_many_jobs_are_waited_for_by_one_watch(self, client, ask):
        refs = [client.submit(ask(name=f"job-{number}", options=[Suspend()])) for number in range(_MANY)]
        before = threading.active_count()
        with ExitStack() as stack:
            followers = [stack.enter_context(client.follow(ref)) for ref in refs]
            assert {follower.look(_PATIENCE).status for follower in followers} <= {"Created", "Suspended"}
            assert all(follower.pushed for follower in followers)
            assert threading.active_count() - before <= 1

    def test_many_jobs_end_for_as_many_who_wait(self, client, ask):
        refs = [client.submit(ask(returns, {"value": number}, name=f"job-{number}")) for number in range(_MANY)]
        with ThreadPoolExecutor(_MANY) as waiters:
            assert [outcome.result for outcome in waiters.map(client.wait, refs)] == list(range(_MANY))
