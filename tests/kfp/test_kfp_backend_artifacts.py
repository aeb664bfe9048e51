"""The double of the KFP backend: where artifacts go, and what is uploaded and registered (rows 1 to 8 and 16)."""

import re

import pytest
from kfp import dsl
from kfp_programs import compiled, run_python

ROOT = "minio://mlpipeline/v2/artifacts"


@pytest.fixture
def run(make_backend, tmp_path):
    """Run a pipeline on an installation with default settings, or with the given ones."""

    def run(pipeline, parameters=None, **settings):
        return make_backend(**settings).run(compiled(pipeline, tmp_path), parameters)

    return run


def produce(source):
    """Return a pipeline of one task that has an output artifact `data` and an output parameter `note`."""

    @dsl.container_component
    def producer(data: dsl.Output[dsl.Dataset], note: dsl.OutputPath(str)):
        return run_python(f"write('note', 'kept')\n{source}")

    @dsl.pipeline(name="one-task")
    def pipeline():
        producer().set_caching_options(False)

    return pipeline


def hand_on(source, consume):
    """Return a pipeline of a task that writes the artifact `data` and one that reads it and writes `note`."""

    @dsl.container_component
    def producer(data: dsl.Output[dsl.Dataset]):
        return run_python(source)

    @dsl.container_component
    def consumer(data: dsl.Input[dsl.Dataset], note: dsl.OutputPath(str)):
        return run_python(consume)

    @dsl.pipeline(name="two-tasks")
    def pipeline():
        consumer(data=producer().outputs["data"])

    return pipeline


def import_from(uri):
    @dsl.container_component
    def consumer(data: dsl.Input[dsl.Dataset]):
        return run_python("print('the program has started')")

    @dsl.pipeline(name="import")
    def pipeline():
        consumer(data=dsl.importer(artifact_uri=uri, artifact_class=dsl.Dataset).output)

    return pipeline


def test_each_task_has_the_output_artifact_executor_logs(run):
    finished = run(produce("write('note', ','.join(sorted(outputs['artifacts'])))"))

    assert finished.output("producer", "note") == "data,executor-logs"


def test_without_published_logs_there_is_no_such_artifact(run):
    finished = run(produce("write('note', ','.join(sorted(outputs['artifacts'])))"), publish_logs=False)

    assert finished.output("producer", "note") == "data"


def test_the_log_is_uploaded_with_the_try_in_its_uri(run):
    finished = run(produce("print('a line'); write('note', artifact('executor-logs')['uri'])"))

    uri = finished.artifact("producer", "executor-logs")["uri"]
    assert uri.endswith("/executor-logs-0")
    assert finished.output("producer", "note") == uri


def test_each_retry_has_a_log_of_its_own_and_the_same_other_uris(make_backend, tmp_path):
    backend = make_backend(retry_policy=None)

    @dsl.container_component
    def stubborn(data: dsl.Output[dsl.Dataset], note: dsl.OutputPath(str)):
        return run_python(
            "uris = {name: artifact(name)['uri'] for name in outputs['artifacts']}\n"
            "write('note', json.dumps(uris)); print(json.dumps(uris))\n"
            "sys.exit(os.environ['KFP_RETRY_INDEX'] == '0')"
        )

    @dsl.pipeline(name="retried")
    def pipeline():
        stubborn().set_retry(1)

    node = backend.run(compiled(pipeline, tmp_path)).task("stubborn")

    (first, second) = (re.findall(r'"([\w-]+)": "([^"]+)"', end.log) for end in node.tries)
    different = set(first) ^ set(second)
    assert node.phase == "Succeeded"
    assert [uri.rpartition("/")[2] for _, uri in sorted(different)] == ["executor-logs-0", "executor-logs-1"]


def test_uris_are_below_the_run_with_a_random_part(run):
    program = "write('note', f\"{artifact('data')['uri']} {path('data').parent.is_dir()}\")"
    finished = run(produce(program))

    uuid = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    assert re.fullmatch(
        rf"{ROOT}/one-task/{finished.run.id}/producer/{uuid}/data True", finished.output("producer", "note")
    )


def test_a_task_runs_again_with_another_random_part(make_backend, tmp_path):
    backend = make_backend()
    documents = compiled(produce("write('note', artifact('data')['uri'])"), tmp_path)

    first, second = (backend.run(documents).output("producer", "note").split("/")[-2] for _ in range(2))

    assert first != second


@pytest.mark.parametrize("root", ["s3://bucket/team", "gs://bucket"])
def test_the_root_of_an_installation_is_used(run, root):
    finished = run(
        hand_on("path('data').write_text('content')", "write('note', path('data', inputs).read_text())"), root=root
    )

    assert finished.output("consumer", "note") == "content"
    assert finished.artifact("producer", "data")["uri"].startswith(f"{root}/two-tasks/{finished.run.id}/")


@pytest.mark.parametrize(
    "uri", ["s3://elsewhere/model", "gs://elsewhere/model", "minio://mlpipeline/v2/artifacts/another-run/model"]
)
def test_an_output_uri_of_another_place_fails_the_step_with_nothing_published(run, uri):
    finished = run(produce(f"report_artifact('data', uri='{uri}')"))

    assert (finished.phase, finished.artifacts("producer")) == ("Failed", {})
    assert f'URI "{uri}" does not have expected bucket prefix "{ROOT}/one-task/' in finished.task("producer").message


@pytest.mark.parametrize("uri", ["pvc://claim/model", "hf://owner/model", "file:///models/1", "oci://registry/model"])
def test_an_output_uri_of_an_unknown_scheme_or_an_image_is_registered(run, uri):
    finished = run(produce(f"report_artifact('data', uri='{uri}')"))

    assert finished.phase == "Succeeded"
    assert finished.artifact("producer", "data")["uri"] == uri


@pytest.mark.parametrize("uri", ["pvc://claim/model", "hf://owner/model", "file:///models/1"])
def test_an_input_artifact_of_an_unknown_scheme_fails_the_step_before_its_program(run, uri):
    finished = run(hand_on(f"report_artifact('data', uri='{uri}')", "print('started')"))

    assert f'unsupported Cloud bucket: "{uri}"' in finished.task("consumer").message
    assert "started" not in finished.task("consumer").log


@pytest.mark.parametrize("uri", ["s3://other/data", "gs://other/data", "minio://other/data"])
def test_an_input_artifact_may_be_in_another_bucket(run, uri):
    assert run(import_from(uri)).task("consumer").log == "the program has started\n"


def test_an_importer_takes_no_other_scheme(run):
    finished = run(import_from("pvc://claim/data"))

    assert finished.task("importer").message == "no provider scheme found in artifact URI: pvc://claim/data"
    assert finished.task("consumer").phase == "Omitted"


def test_what_is_imported_is_downloaded(make_backend, tmp_path):
    @dsl.container_component
    def consumer(data: dsl.Input[dsl.Dataset], note: dsl.OutputPath(str)):
        return run_python("write('note', (path('data', inputs) / 'part' / 'a.csv').read_text())")

    @dsl.pipeline(name="import")
    def pipeline():
        consumer(data=dsl.importer(artifact_uri="s3://other/data", artifact_class=dsl.Dataset).output)

    backend = make_backend()
    (backend.buckets.path("s3://other/data") / "part").mkdir(parents=True)
    (backend.buckets.path("s3://other/data") / "part" / "a.csv").write_text("1,2")

    assert backend.run(compiled(pipeline, tmp_path)).output("consumer", "note") == "1,2"


def test_only_the_first_artifact_of_a_list_is_looked_at_before_the_downloads(run):
    @dsl.container_component
    def producer(uri: str, data: dsl.Output[dsl.Dataset]):
        return run_python("report_artifact('data', uri=parameters['uri']) if parameters['uri'] else None")

    @dsl.container_component
    def consumer(data: dsl.Input[list[dsl.Dataset]]):
        return run_python("print(len(inputs['artifacts']['data']['artifacts']))")

    @dsl.pipeline(name="collected")
    def pipeline(uris: list[str]):
        with dsl.ParallelFor(uris) as uri:
            produced = producer(uri=uri)
        consumer(data=dsl.Collected(produced.outputs["data"]))

    second, first = (run(pipeline, {"uris": uris}).task("consumer") for uris in (["", "pvc://c/d"], ["pvc://c/d", ""]))

    assert (second.phase, second.log, first.phase) == ("Succeeded", "2\n", "Failed")


def test_artifacts_are_copied_by_the_object_store_and_nothing_else_is_seen(run):
    leave = "path('data').mkdir(); (path('data') / 'a').write_text('1'); pathlib.Path('/tmp/left').write_text('2')"
    look = "write('note', f\"{(path('data', inputs) / 'a').read_text()} {os.path.exists('/tmp/left')}\")"

    assert run(hand_on(leave, look)).output("consumer", "note") == "1 False"


def test_an_artifact_that_was_not_written_does_not_exist_for_its_consumer(run):
    finished = run(hand_on("", "write('note', str(path('data', inputs).exists()))"))

    assert finished.output("consumer", "note") == "False"


def test_a_failed_step_publishes_its_log_only(run):
    finished = run(produce("path('data').write_text('half'); report(parameterValues={}); print('why'); sys.exit(3)"))

    assert (finished.phase, finished.task("producer").message) == ("Failed", "exit status 3")
    assert list(finished.artifacts("producer")) == ["executor-logs"]
    assert finished.task("producer").execution.outputs == {}


def test_a_failed_step_without_published_logs_publishes_nothing(run):
    finished = run(produce("path('data').write_text('half'); sys.exit(3)"), publish_logs=False)

    assert finished.artifacts("producer") == {}


def test_a_broken_link_ends_the_upload_of_a_folder_and_the_step_succeeds(run):
    links = "path('data').mkdir(); [(path('data') / name).write_text(name) for name in 'az']\n"
    finished = run(
        hand_on(
            f"{links}(path('data') / 'm').symlink_to('nowhere')",
            "write('note', str(sorted(os.listdir(path('data', inputs)))))",
        )
    )

    assert finished.output("consumer", "note") == "['a']"


def test_a_link_to_a_folder_fails_the_step(run):
    finished = run(produce("path('data').mkdir(); (path('data') / 'm').symlink_to('/tmp')"))

    assert finished.phase == "Failed"
    assert "Is a directory" in finished.task("producer").message


def test_links_to_files_are_followed_and_empty_folders_and_modes_are_lost(run):
    source = """
folder = path('data')
(folder / 'empty').mkdir(parents=True)
pathlib.Path('/tmp/file').write_text('linked')
(folder / 'link').symlink_to('/tmp/file')
(folder / 'run.sh').write_text('')
(folder / 'run.sh').chmod(0o755)
"""
    consume = """
folder = path('data', inputs)
write('note', f"{sorted(os.listdir(folder))} {(folder / 'link').read_text()} {os.access(folder / 'run.sh', os.X_OK)}")
"""

    assert run(hand_on(source, consume)).output("consumer", "note") == "['link', 'run.sh'] linked False"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"parameterValues": {"a": NaN}}', "invalid value NaN"),
        ('{"parameterValues": {"a": Infinity}}', "invalid value Infinity"),
        ('{"artifact": {}}', 'unknown field "artifact"'),
        ('{"artifacts": {"data": {"artifacts": [{"path": "/x"}]}}}', 'unknown field "path"'),
        ("not json", "syntax error"),
    ],
)
def test_executor_output_json_is_read_strictly_and_the_log_is_published(run, text, message):
    source = "file = pathlib.Path(outputs['outputFile']); file.parent.mkdir(parents=True, exist_ok=True)\n"
    finished = run(produce(f"{source}file.write_text({text!r})"))

    assert message in finished.task("producer").message
    assert list(finished.artifacts("producer")) == ["executor-logs"]


def test_a_null_at_the_top_of_metadata_fails_the_step(run):
    finished = run(produce("report_artifact('data', metadata={'a': None})"))

    assert "unknown/unsupported value type" in finished.task("producer").message
    assert finished.artifacts("producer") == {}


def test_consumers_see_lists_structs_and_booleans_of_metadata_as_they_are_kept(run):
    metadata = {"list": [1, None], "struct": {"a": None}, "yes": True, "text": "t"}
    finished = run(hand_on(f"report_artifact('data', metadata={metadata!r})", "write('note', '')"))

    found = finished.artifact("producer", "data")["metadata"]
    assert {name: found[name] for name in metadata} == {
        "list": {"list": [1.0, None]},
        "struct": {"struct": {"a": None}},
        "yes": 1.0,
        "text": "t",
    }


def test_metadata_are_merged_by_key_from_the_first_artifact_of_a_list(run):
    given = "{'data': {'artifacts': [{'metadata': {'a': 1}}, {'metadata': {'b': 2}}]}}"
    finished = run(produce(f"report(artifacts={given})"))

    metadata = finished.artifact("producer", "data")["metadata"]
    assert (metadata["a"], "b" in metadata) == (1.0, False)


def test_a_custom_path_is_uploaded_to_the_uri_of_the_artifact(run):
    finished = run(
        hand_on(
            "pathlib.Path('/tmp/model').write_text('weights'); report_artifact('data', custom_path='/tmp/model')",
            "write('note', path('data', inputs).read_text())",
        )
    )

    assert finished.output("consumer", "note") == "weights"
