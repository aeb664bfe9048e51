"""Options as plain data, as YAML files and DAGs spell them."""

from __future__ import annotations

import pytest

from trainer_core import (
    ActiveDeadlineSeconds,
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    Labels,
    PodSpecPatch,
    PodTemplatePatch,
    QueueName,
    ReplicatedJobPatch,
    RuntimePatch,
    Suspend,
    TrainingRuntimeSpecPatch,
    Workspace,
    build,
)
from trainer_core.client import backend_for
from trainer_core.named_options import options_from

_TREE = RuntimePatch(
    TrainingRuntimeSpecPatch(
        JobSetTemplatePatch(
            spec=JobSetSpecPatch(
                [
                    ReplicatedJobPatch(
                        "node",
                        JobTemplatePatch(
                            spec=JobSpecPatch(
                                PodTemplatePatch(
                                    spec=PodSpecPatch(
                                        node_selector={"gpu": "h100"},
                                        containers=[ContainerPatch("node", env=[{"name": "A", "value": "b"}])],
                                    )
                                )
                            )
                        ),
                    )
                ]
            )
        )
    )
)


def _tree(node_selector, replicated_jobs):
    pod = {node_selector: {"gpu": "h100"}, "containers": [{"name": "node", "env": [{"name": "A", "value": "b"}]}]}
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
    return {"RuntimePatch": {"template": {"spec": {replicated_jobs: jobs}}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Suspend", Suspend()),
        ({"Suspend": None}, Suspend()),
        ({"QueueName": "nightly"}, QueueName("nightly")),
        ({"Labels": {"labels": "vision"}}, Labels({"labels": "vision"})),
        ({"ActiveDeadlineSeconds": 60}, ActiveDeadlineSeconds(60)),
        ({"Workspace": {"claim": "data", "storageClass": "fast"}}, Workspace("data", storage_class="fast")),
        ("Workspace", Workspace()),
        (_tree("node_selector", "replicated_jobs"), _TREE),
        (_tree("nodeSelector", "replicatedJobs"), _TREE),
        (QueueName("nightly"), QueueName("nightly")),
    ],
)
def test_a_name_with_its_settings_stands_for_an_option(given, expected):
    assert options_from([given]) == [expected]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"QueueName": "nightly"}, "options must be a list such as"),
        ("Suspend", "options must be a list such as"),
        (["Queue"], r"unknown option Queue; known are ActiveDeadlineSeconds, Annotations, .*QueueName"),
        (["TrainerClient"], "unknown option TrainerClient"),
        ([{"QueueName": "a", "PriorityClass": "b"}], "an option is one name .*; got QueueName, PriorityClass"),
        ([{}], "got none"),
        ([{"QueueName": {"name": "a"}}], "QueueName must be a name"),
        ([{"ActiveDeadlineSeconds": 0}], "must be a positive integer"),
        (["QueueName"], "QueueName needs name"),
        ([{"Suspend": True}], "option Suspend takes no settings, got bool"),
        ([{"Workspace": "data"}], "option Workspace takes a dict of claim, size, storage_class, access_mode, got str"),
        ([{"Workspace": {"sice": "1Gi"}}], "unknown field sice of Workspace; known are claim, size"),
        ([{"RuntimePatch": {"template": {"spec": {"jobs": []}}}}], "unknown field jobs of JobSetSpecPatch"),
        ([3], "options must be callables such as"),
    ],
)
def test_what_stands_for_no_option_is_refused_in_one_line(given, message):
    with pytest.raises(ValueError, match=message) as refused:
        build.plain(backend=backend_for("kubernetes"), options=given)
    assert "\n" not in str(refused.value)


def test_plain_data_and_objects_give_the_same_request():
    named = build.plain(backend=backend_for("kubernetes"), options=[_tree("nodeSelector", "replicatedJobs")])
    assert named == build.plain(backend=backend_for("kubernetes"), options=[_TREE])
