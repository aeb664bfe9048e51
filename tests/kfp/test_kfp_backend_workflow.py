"""The double of the KFP backend: retries, the cache, sub-pipelines, exit tasks and lifetime (rows 19, 24 to 26, 29)."""

import json

import pytest
from fake_cluster import Cluster
from kfp import dsl
from kfp_backend import WORKFLOW_DEFINITION, Pod
from kfp_programs import compiled, run_python

SHOW = "print(json.dumps(parameters, sort_keys=True))"


@pytest.fixture
def backend(make_backend):
    """An installation without retry settings, where Argo repeats what failed."""
    return make_backend(retry_policy=None)


# Retries.


def retried(source, **policy):
    @dsl.container_component
    def step(value: dsl.OutputPath(str)):
        return run_python(source)

    @dsl.pipeline(name="retried")
    def pipeline():
        step().set_retry(**policy)

    return pipeline


FAIL = "print(given['outputs']['outputFile'] + os.environ['KFP_RETRY_INDEX']); sys.exit(1)"


def test_a_failed_step_is_tried_again_with_the_same_executor_input(backend, tmp_path):
    node = backend.run(compiled(retried(FAIL, num_retries=2), tmp_path)).task("step")

    assert (node.phase, node.message) == ("Failed", "exit status 1")
    assert len({end.log.rstrip("012\n") for end in node.tries}) == 1
    assert [end.log[-2] for end in node.tries] == ["0", "1", "2"]


def test_a_deleted_pod_is_not_retried(backend, tmp_path):
    run = backend.run(compiled(retried(FAIL, num_retries=2), tmp_path), pods={"step": [Pod(evicted=True)]})

    assert (run.phase, len(run.task("step").tries)) == ("Error", 1)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_with_the_settings_of_2_17_a_failed_step_is_final(make_backend, tmp_path, retries):
    pipeline = retried(FAIL.replace("['KFP_RETRY_INDEX']", ".get('KFP_RETRY_INDEX', '')"), num_retries=retries)

    run = make_backend().run(compiled(pipeline, tmp_path))

    assert (run.phase, len(run.task("step").tries)) == ("Failed", 1)


def test_with_the_settings_of_2_17_a_deleted_pod_is_run_again_twice_without_set_retry(make_backend, tmp_path):
    @dsl.container_component
    def step():
        return run_python("")

    @dsl.pipeline(name="deleted")
    def pipeline():
        step()

    documents, backend = compiled(pipeline, tmp_path), make_backend(cache=False)
    runs = [backend.run(documents, pods={"step": [Pod(evicted=True)] * count}) for count in (2, 3)]

    assert [(run.phase, len(run.task("step").tries)) for run in runs] == [("Succeeded", 3), ("Error", 3)]


def test_no_retry_is_made_an_hour_after_the_first_start(backend, tmp_path):
    node = backend.run(compiled(retried(FAIL, num_retries=5), tmp_path), pods={"step": [Pod(seconds=3601)]}).task(
        "step"
    )

    assert (len(node.tries), node.message) == (1, "Max duration limit exceeded")


def test_a_second_try_is_killed_an_hour_after_the_first_start(backend, tmp_path):
    pods = {"step": [Pod(seconds=3000), Pod(seconds=3000)]}

    node = backend.run(compiled(retried(FAIL, num_retries=5), tmp_path), pods=pods).task("step")

    assert [end.error for end in node.tries] == ["exit status 1", "killed at the end of the retry window"]


def test_a_longer_window_lets_a_long_step_be_tried_again(backend, tmp_path):
    succeed = "write('value', ''); sys.exit(os.environ['KFP_RETRY_INDEX'] == '0')"
    pipeline = retried(succeed, num_retries=1, backoff_max_duration="86400s")

    run = backend.run(compiled(pipeline, tmp_path), pods={"step": [Pod(seconds=7200), Pod(seconds=7200)]})

    assert (run.phase, len(run.task("step").tries)) == ("Succeeded", 2)


def test_waiting_for_a_retry_takes_simulated_time(backend, tmp_path):
    pipeline = retried(FAIL, num_retries=2, backoff_duration="60s", backoff_factor=2.0)
    begin = backend.clock.now

    backend.run(compiled(pipeline, tmp_path))

    assert backend.clock.now - begin == 60 + 120


def test_a_retry_that_would_begin_after_the_window_is_not_made(backend, tmp_path):
    pipeline = retried(FAIL, num_retries=2, backoff_duration="60s", backoff_max_duration="90s")

    node = backend.run(compiled(pipeline, tmp_path)).task("step")

    assert (len(node.tries), node.message) == (2, "Backoff would exceed max duration limit")


def test_tasks_without_a_retry_policy_have_that_of_the_sub_pipeline(backend, tmp_path):
    @dsl.container_component
    def step():
        return run_python(FAIL)

    @dsl.pipeline(name="inner")
    def inner():
        step()

    @dsl.pipeline(name="outer")
    def outer():
        inner().set_retry(1)

    assert len(backend.run(compiled(outer, tmp_path)).task("step").tries) == 2


# The cache.


def cached(default=1, text=""):
    @dsl.container_component
    def step(data: dsl.Output[dsl.Dataset], value: dsl.OutputPath(str), count: int = default, name: str = "a"):
        return run_python(f"path('data').write_text('x'); write('value', str(parameters['count'])){text}")

    return step


def pipeline_of(step, **inputs):
    @dsl.pipeline(name="cached")
    def pipeline():
        step(**inputs)

    return pipeline


def was_cached(backend, folder, *pipelines):
    """Whether the last of some runs takes the outputs of one before."""
    return [backend.run(compiled(pipeline, folder)).task("step").cached for pipeline in pipelines][-1]


def test_a_hit_gives_the_old_uris(backend, tmp_path):
    documents = compiled(pipeline_of(cached(), name="a"), tmp_path)

    first, second = backend.run(documents), backend.run(documents)

    assert (first.task("step").cached, second.task("step").cached) == (False, True)
    assert second.artifacts("step") == first.artifacts("step")
    assert (second.output("step", "value"), second.task("step").execution.state) == ("1", "CACHED")


def test_inputs_and_commands_are_in_the_key(backend, tmp_path):
    assert not was_cached(backend, tmp_path, pipeline_of(cached(), name="a"), pipeline_of(cached(), name="b"))
    assert not was_cached(backend, tmp_path, pipeline_of(cached(text="\n# other"), name="a"))


def test_defaults_of_components_and_variables_are_not_in_the_key(backend, tmp_path):
    @dsl.pipeline(name="cached")
    def with_variable():
        cached()(name="a").set_env_variable("COLOUR", "blue")

    assert was_cached(backend, tmp_path, pipeline_of(cached(), name="a"), pipeline_of(cached(default=2), name="a"))
    assert was_cached(backend, tmp_path, with_variable)


def test_other_pipelines_tasks_and_installations_without_a_cache_have_no_hit(make_backend, tmp_path):
    @dsl.pipeline(name="another")
    def another():
        cached()(name="a")

    @dsl.pipeline(name="cached")
    def switched_off():
        cached()(name="a").set_caching_options(False)

    first = pipeline_of(cached(), name="a")

    assert not was_cached(make_backend(), tmp_path, first, another)
    assert not was_cached(make_backend(), tmp_path, first, switched_off)
    assert not was_cached(make_backend(cache=False), tmp_path, first, first)


def test_a_failed_task_has_no_entry_and_one_that_succeeds_in_a_retry_has(backend, tmp_path):
    flag = "; sys.exit(os.environ.get('KFP_RETRY_INDEX') != '1')"

    @dsl.pipeline(name="cached")
    def retried():
        cached(text=flag)(name="a").set_retry(1)

    failing = pipeline_of(cached(text=flag), name="a")

    assert not was_cached(backend, tmp_path, failing, failing)
    assert was_cached(backend, tmp_path, retried, retried)


def test_artifacts_are_in_the_key_by_their_id(backend, tmp_path):
    @dsl.container_component
    def step(data: dsl.Input[dsl.Dataset]):
        return run_python("")

    @dsl.pipeline(name="cached")
    def pipeline(produce: str):
        made = cached()(name=produce)
        made.set_display_name("make")
        step(data=made.outputs["data"])

    documents = compiled(pipeline, tmp_path)
    hits = [backend.run(documents, {"produce": name}).task("step-2").cached for name in ("a", "a", "b")]

    assert hits == [False, True, False]


def test_a_hit_without_one_of_the_artifacts_fails_in_the_driver(make_backend, tmp_path):
    logs_off, logs_on = make_backend(publish_logs=False), make_backend()
    logs_on.store, logs_on.cache = logs_off.store, logs_off.cache
    documents = compiled(pipeline_of(cached(), name="a"), tmp_path)
    logs_off.run(documents)
    # Published logs are in the key, so only an entry that lost an artifact shows it.
    logs_off.store.executions[-1].output_events.clear()

    node = logs_off.run(documents).task("step")

    assert (node.phase, node.message) == ("Failed", "unable to find artifact with name data in mlmd output artifacts")


# Sub-pipelines, loops and conditions.


@dsl.container_component
def produce(data: dsl.Output[dsl.Dataset], value: dsl.OutputPath(int), number: int = 1):
    return run_python(
        "path('data').write_text(str(parameters['number'])); write('value', str(int(parameters['number'])))"
    )


def test_one_artifact_under_two_names_arrives_in_a_sub_pipeline_under_one(backend, tmp_path):
    @dsl.container_component
    def take(first: dsl.Input[dsl.Dataset], second: dsl.Input[dsl.Dataset]):
        return run_python("")

    @dsl.pipeline(name="inner")
    def inner(first: dsl.Input[dsl.Dataset], second: dsl.Input[dsl.Dataset]):
        take(first=first, second=second)

    @dsl.pipeline(name="outer")
    def outer():
        made = produce().outputs["data"]
        inner(first=made, second=made)

    node = backend.run(compiled(outer, tmp_path)).task("take")

    assert "parent DAG does not have input artifact first" in node.message


@dsl.container_component
def count(data: dsl.Input[list[dsl.Dataset]]):
    return run_python("print(len(inputs['artifacts']['data']['artifacts']))")


def test_a_collected_list_of_artifacts_shrinks_to_its_last_item_in_a_sub_pipeline(backend, tmp_path):
    @dsl.pipeline(name="inner")
    def inner(data: dsl.Input[list[dsl.Dataset]]):
        count(data=data)

    @dsl.pipeline(name="outer")
    def outer():
        with dsl.ParallelFor([1, 2, 3]) as number:
            made = produce(number=number)
        count(data=dsl.Collected(made.outputs["data"]))
        inner(data=dsl.Collected(made.outputs["data"]))

    run = backend.run(compiled(outer, tmp_path))

    assert run.phase == "Succeeded", run.explain()
    assert [run.task(name).log for name in ("root.count", "root.inner.count")] == ["3\n", "1\n"]


def test_parameters_are_collected_in_the_order_of_the_iterations(backend, tmp_path):
    @dsl.container_component
    def show(values: list[int]):
        return run_python(SHOW)

    @dsl.pipeline(name="collected")
    def pipeline(numbers: list[int]):
        with dsl.ParallelFor(numbers, parallelism=2) as number:
            made = produce(number=number)
        show(values=dsl.Collected(made.outputs["value"]))

    run = backend.run(compiled(pipeline, tmp_path), {"numbers": [3, 1, 2]})

    assert json.loads(run.task("show").log) == {"values": [3, 1, 2]}
    assert [node.path for node in run.tasks("produce")] == [f"root.for-loop-1[{index}].produce" for index in range(3)]


def test_what_depends_on_a_skipped_task_is_omitted_and_the_run_succeeds(backend, tmp_path):
    @dsl.container_component
    def after():
        return run_python("")

    @dsl.pipeline(name="skipped")
    def pipeline(number: int):
        made = produce(number=number)
        with dsl.If(made.outputs["value"] > 1):
            produce(number=2)
        after()

    documents = compiled(pipeline, tmp_path)
    # The SDK refuses such a dependency; a condition of a sub-pipeline leads to it all the same.
    documents[0]["root"]["dag"]["tasks"]["after"]["dependentTasks"] = ["condition-1"]
    run = backend.run(documents, {"number": 1})

    assert (run.phase, run.task("condition-1").phase, run.task("after").phase) == ("Succeeded", "Skipped", "Omitted")
    assert run.tasks("produce-2") == []


@pytest.mark.parametrize(("number", "branch"), [(1, "small"), (5, "large")])
def test_the_output_of_the_branch_that_ran_is_taken(backend, tmp_path, number, branch):
    @dsl.container_component
    def name(text: str, value: dsl.OutputPath(str)):
        return run_python("write('value', parameters['text'])")

    @dsl.pipeline(name="one-of")
    def pipeline(number: int) -> str:
        made = produce(number=number)
        with dsl.If(made.outputs["value"] > 3):
            large = name(text="large")
        with dsl.Else():
            small = name(text="small")
        return dsl.OneOf(large.outputs["value"], small.outputs["value"])

    run = backend.run(compiled(pipeline, tmp_path), {"number": number})

    assert run.phase == "Succeeded", run.explain()
    assert run.pipeline_output("Output") == branch


def test_a_failed_task_stops_what_has_not_started(backend, tmp_path):
    @dsl.container_component
    def fail():
        return run_python("sys.exit(1)")

    @dsl.pipeline(name="fail-fast")
    def pipeline():
        failed = fail()
        beside = produce()
        produce().after(beside)
        produce().after(failed)

    run = backend.run(compiled(pipeline, tmp_path))

    assert run.phase == "Failed"
    assert [run.task(name).phase for name in ("produce", "produce-2", "produce-3")] == [
        "Succeeded",
        "Omitted",
        "Omitted",
    ]


# Exit tasks.


def with_exit_task(source):
    @dsl.container_component
    def step():
        return run_python(source)

    @dsl.container_component
    def clean(status: dsl.PipelineTaskFinalStatus, run: str):
        return run_python(SHOW)

    @dsl.pipeline(name="with-exit")
    def pipeline():
        with dsl.ExitHandler(clean(run=dsl.PIPELINE_JOB_ID_PLACEHOLDER)):
            step()

    return pipeline


@pytest.mark.parametrize(("source", "state"), [("", "COMPLETE"), ("sys.exit(1)", "FAILED")])
def test_an_exit_task_runs_after_its_body_and_gets_the_state_of_it(backend, tmp_path, source, state):
    run = backend.run(compiled(with_exit_task(source), tmp_path))

    seen = json.loads(run.task("clean").log)
    assert (run.phase == "Succeeded") == (state == "COMPLETE")
    assert (seen["run"], seen["status"]["state"], seen["status"]["pipelineTaskName"]) == (
        run.run.id,
        state,
        "exit-handler-1",
    )


def test_after_a_step_was_killed_the_state_is_still_running(backend, tmp_path):
    ready = "import signal; print('ready', flush=True); signal.pause()"

    run = backend.run(compiled(with_exit_task(ready), tmp_path), on_line=lambda step, line: step.terminate_run(0))

    assert run.phase == "Failed"
    assert json.loads(run.task("clean").log)["status"]["state"] == "RUNNING"


def test_tasks_of_equal_names_in_one_dag_are_an_error_for_later_tasks(backend, tmp_path):
    @dsl.container_component
    def take(value: int):
        return run_python("")

    @dsl.pipeline(name="twice")
    def pipeline():
        take(value=produce().outputs["value"])

    def add_another(step, line):
        execution = step.workflow.nodes[-1].execution
        backend.store.create("container", "produce", execution.parent, inputs={})

    documents = compiled(pipeline, tmp_path)
    executor = documents[0]["deploymentSpec"]["executors"]["exec-produce"]["container"]
    executor["command"][2] += "\nprint('ready')"

    assert "two tasks have the same task name" in backend.run(documents, on_line=add_another).task("take").message


# Lifetime.


def test_a_workflow_and_what_it_owns_are_deleted_a_day_after_its_end(backend, tmp_path):
    with Cluster() as cluster:
        cluster.add(WORKFLOW_DEFINITION)
        backend.objects.api = cluster
        run = backend.run(compiled(pipeline_of(cached(), name="a"), tmp_path))
        (pod,) = cluster.objects("pods", "kubeflow")

        backend.clock.now += 86_399
        early = backend.delete_expired_workflows()
        backend.clock.now += 1
        late = backend.delete_expired_workflows()

        cluster.until(lambda: not cluster.objects("pods", "kubeflow"))

    assert (early, late) == ([], [run.run.name])
    assert [owner["kind"] for owner in pod["metadata"]["ownerReferences"]] == ["Workflow"]
