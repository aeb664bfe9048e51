"""The component that searches for the best parameters of a training."""

from typing import Dict

from kfp import dsl

from kfp_components.container_spec import PASSTHROUGHS, build_container_spec, component

__all__ = ["search"]


@component(task_config_passthroughs=PASSTHROUGHS)
def search(
    parameters: dsl.OutputPath(Dict),
    job: dsl.OutputPath(Dict),
    result: dsl.OutputPath(Dict),
    metric: dsl.OutputPath(float),
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    trials: dsl.Output[dsl.Dataset],
    report: dsl.Output[dsl.HTML],
    task_config: dsl.TaskConfig = None,
) -> dsl.ContainerSpec:
    """Search for the best parameters of a training, once for all retries of this task: each trial is a TrainJob.

    A retry continues with the same trials. If the search fails, the task fails.
    `kfp_components.tasks.search_task` packages a training function.

    Args:
        run_id: Id of the run: dsl.PIPELINE_JOB_ID_PLACEHOLDER. Filled in, except where the component is loaded from
            YAML. KFP never takes a task with it from the cache of another run. `delete` and `trainjob reap` find the
            trials of a run by it.
        search_space: Distribution of each parameter, such as {"lr": {"loguniform": [0.0001, 0.1]}, "batch": [16, 32]}.
        objectives: The objective, and further metrics to collect, such as [{"metric": "val_loss"}]; None for the
            smallest loss.
        trial_config: Limits, such as {"num_trials": 20, "parallel_trials": 4}; None for 10 trials, one after the other.
        algorithm: Name and fields of the algorithm, such as {"OptunaSampler": {"name": "tpe"}}; None for random search.
        stop: Name and fields of the rule that ends losers early, such as {"Asha": {"min_step": 1, "max_step": 30}}.
        request: The TrainJob of a trial: a definition as for `trainjob submit`, such as {"runtime":
            "torch-distributed", "trainer": {"image": "registry/name:1.0", "num_nodes": 2}}, or what
            `trainer_core.definition.request_builder.build_request_data` returns.
        func_args: Arguments of the training function, over those in the request; the parameters of a trial override
            them.
        dataset: Dataset of the trials: what the training function finds in `dataset_path()`. A job on a cluster reads
            it from the URI in the artifact's metadata, else from KFP's object store.
        pretrained: Model of the trials: what the training function finds in `model_path()`, read in the same way.
        output_path: On a cluster, the folder of `output_path()` of the training function: in a volume claim that this
            task mounts, such as dsl.WORKSPACE_PATH_PLACEHOLDER. All trials have the same. None for a folder in the pod,
            which is lost with it.
        job_name: Name of the search; None for one that belongs to this task and run. Every task with this name and the
            same definition continues the same search.
        timeout: Seconds to wait at most; 0 for no limit. The trials continue. For a limit of the search, see
            `trial_config`.
        on_kill: What this task does to the search when its run is terminated: "cancel" or "keep".
        task_config: Filled in by KFP: resources, env, node selector, tolerations, affinity and volumes that are set on
            the task. They reach the pods that train. Only `search_task` makes KFP fill it in.

    Returns:
        parameters: Parameters of the best trial, for `func_args` of another task.
        job: Ref of its TrainJob.
        result: What its training function returned; a value that is not a dict is under "value".
        metric: The value of its objective.
        model: The model that its result names as {"artifacts": {"model": uri}}.
        metrics: The numbers of its result.
        trials: Table of all trials, CSV.
        report: Page with the trials and how the objective depends on each parameter. KFP stores it only if the task
            succeeds.

    Example:
        tuned = search(
            request={"runtime": "torch-distributed", "trainer": {"image": "registry/train:1.0"}},
            search_space={"lr": {"loguniform": [0.0001, 0.1]}},
            args=["--lr", "${trialParameters.lr}"],
            objectives=[{"metric": "val_loss"}],
            backend="kubernetes",
        )
    """
    return build_container_spec("search")
