"""A search whose trials wait in a queue of Kueue, where the stop of a trial deletes its TrainJob."""

from __future__ import annotations

from k8s_scene import a_client, a_stage

from trainer_core import Asha, CustomTrainer, GridSearch, Name, Objective, QueueName, TrainJobTemplate, TrialConfig
from trainer_core.search.snapshot import read_search
from trainer_core.testing.training_functions import report_loss


def test_a_loser_leaves_its_value_in_a_record_before_its_job_is_deleted():
    with a_stage(kueue=True, grace=0.05) as (cluster, client):
        admitted = set()

        def admit(state):
            for ref in set(state.live) - admitted:
                cluster.admit(ref.name)
                admitted.add(ref)

        # The second trial waits before its second step, until it is stopped.
        template = TrainJobTemplate(CustomTrainer(report_loss, {"steps": 2, "wait_at": 2}), "python")
        name = client.optimize(
            template,
            search_space={"rate": [0.5, 1.0]},
            algorithm=GridSearch(),
            objectives=[Objective("val_loss")],
            trial_config=TrialConfig(2, 1),
            stop=Asha(),
            options=[Name("tune"), QueueName("nightly")],
        )
        outcome = client.wait_for_search(name, 100, on_change=admit)
        assert [(trial.status, trial.value) for trial in outcome.trials] == [("Complete", 0.25), ("Stopped early", 1.0)]
        loser = outcome.trials[1]
        assert loser.reason == "val_loss 1 at step 1 is not the best of 2: 0.5"
        assert cluster.get("TrainJob", loser.name) is None

        entries = {}
        for raw in cluster.objects("TrainJob"):
            section = client.get_job_request(raw["metadata"]["name"]).context.search
            entries[section.entry] = (section.reason, "kueue.x-k8s.io/queue-name" in raw["metadata"]["labels"])
        assert entries == {0: (None, True), 2: ("stopped", False), 3: ("complete", False)}
        writes = [request for request in cluster.requests if request.verb in ("create", "delete")]
        at = next(at for at, request in enumerate(writes) if request.path.endswith(loser.name))
        assert [request.verb for request in writes[at - 1 :]] == ["create", "delete", "create"]

        later = a_client(cluster)
        assert later.wait_for_search(name, 100).trials == outcome.trials
        assert read_search(later, "search/tune").trials == list(outcome.trials)
