"""One contract for both registries: a folder, and a real MLflow server read with the real mlflow client."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from trainer_core.base.errors import InvalidRequestError, TrackingError
from trainer_core.model.jobs import Outcome, TrainJobRef
from trainer_core.node import artifact_stamps
from trainer_core.tracking import model_registry as registry_module
from trainer_core.tracking.mlflow_api import MlflowApi
from trainer_core.tracking.mlflow_registry import MlflowRegistry
from trainer_core.tracking.model_registry import Candidate, FolderRegistry, Promotion
from trainer_core.tracking.registries import open_registry
from trainer_core.tracking.server import MlflowServer


@pytest.fixture(params=["folder", "mlflow"])
def registry(request, tmp_path):
    if request.param == "folder":
        yield FolderRegistry(tmp_path / "registry")
        return
    with MlflowRegistry(MlflowServer(request.getfixturevalue("mlflow_uri"))) as server:
        yield server


@pytest.fixture
def model(request):
    """A model for one test."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-60:].strip("-")


@pytest.fixture
def promote(registry, model, tmp_path):
    """Promote a model file whose content is the name of its job."""

    def _promote(job, value, metric="accuracy", uid=None, **options):
        candidate = build_candidate(tmp_path, job, value, metric, uid)
        return registry.promote_candidate(candidate, model=model, **options)

    return _promote


def build_candidate(folder, job, value, metric="accuracy", uid=None):
    file = folder / f"{job}.bin"
    file.write_text(job)
    return Candidate(job, file.as_uri(), metric, value, uid=uid)


@pytest.fixture
def withdraw(registry, request, model, tmp_path):
    """Remove the alias, as a person does."""
    if isinstance(registry, FolderRegistry):
        return (tmp_path / "registry" / model / "current.json").unlink
    ask = request.getfixturevalue("ask")
    return lambda: ask("delete_alias", model=model, alias="champion")


def build_outcome(**fields):
    ref = TrainJobRef("local", "/home", "nightly", "uid-1").to_dict()
    return Outcome(**{"ref": ref, "status": "Complete", "metrics": {"accuracy": 0.5}, **fields})


def find_champion(registry, model):
    champion = registry.get_champion(model)
    return champion.metric if champion else None


def test_a_better_model_is_promoted_and_a_worse_or_equal_one_is_not(registry, promote, model):
    answers = [promote(job, value) for job, value in (("one", 0.5), ("two", 0.6), ("three", 0.6), ("four", 0.4))]

    assert [each.promoted for each in answers] == [True, True, False, False]
    assert [each.before for each in answers] == [None, 0.5, 0.6, 0.6]
    assert find_champion(registry, model) == 0.6


def test_lower_can_be_better_by_at_least_a_difference(registry, promote, model):
    answers = [
        promote(job, value, mode="min", min_delta=0.1) for job, value in (("one", 1.0), ("two", 0.95), ("three", 0.8))
    ]

    assert [each.promoted for each in answers] == [True, False, True]
    assert find_champion(registry, model) == 0.8


def test_promoting_again_changes_nothing_and_gives_the_same_answer(registry, promote, model):
    first, second, third = promote("one", 0.5), promote("two", 0.6), promote("three", 0.55)

    again = [promote("one", 0.5), promote("two", 0.6), promote("three", 0.55)]

    assert [each.promoted for each in again] == [first.promoted, second.promoted, third.promoted] == [True, True, False]
    assert [each.before for each in again] == [None, 0.5, 0.6]
    assert find_champion(registry, model) == 0.6


@pytest.mark.parametrize(("metric", "mode"), [("loss", "max"), ("accuracy", "min"), ("loss", "min")])
def test_another_metric_or_mode_than_the_champions_is_refused_and_nothing_is_registered(
    registry, promote, model, metric, mode
):
    promote("one", 0.83)
    with pytest.raises(InvalidRequestError, match=rf"compares accuracy \(max\), and {metric} \({mode}\) was given"):
        promote("two", 0.05, metric=metric, mode=mode)

    assert [each.metric for each in registry.list_versions(model)] == [0.83]
    assert find_champion(registry, model) == 0.83


def test_a_metric_that_is_replaced_is_the_one_that_counts_from_then_on(registry, promote, model):
    promote("one", 0.83)
    first = promote("two", 0.05, metric="loss", mode="min", replace_metric=True)
    answers = [promote("three", value, metric="loss", mode="min") for value in (0.06,)]
    answers.append(promote("four", 0.04, metric="loss", mode="min"))
    again = promote("two", 0.05, metric="loss", mode="min")

    assert (first.promoted, first.before, again) == (True, None, Promotion(True, first.version, again.uri, 0.05))
    assert [(each.promoted, each.before) for each in answers] == [(False, 0.05), (True, 0.05)]
    assert find_champion(registry, model) == 0.04
    with pytest.raises(InvalidRequestError, match=r"compares loss \(min\)"):
        promote("five", 0.99)


def test_the_champion_itself_can_be_compared_by_another_metric(registry, promote, model):
    first = promote("one", 0.83, uid="uid-1")
    again = promote("one", 0.05, metric="loss", mode="min", replace_metric=True, uid="uid-1")
    worse = promote("two", 0.06, metric="loss", mode="min")

    assert (again.promoted, again.version, worse.promoted, worse.before) == (True, first.version, False, 0.05)


def test_another_alias_can_compare_another_metric(registry, promote, model):
    promote("one", 0.83)
    promote("two", 7.0, metric="latency", mode="min", alias="fastest")
    promote("three", 0.9)
    promote("four", 6.0, metric="latency", mode="min", alias="fastest")

    assert find_champion(registry, model) == 0.9
    assert registry.get_champion(model, "fastest").metric == 6.0


def test_an_alias_that_a_person_deleted_starts_again_with_the_next_model(registry, promote, model, withdraw):
    promote("one", 0.5)
    promote("two", 0.7)
    withdraw()
    worse, repeated = promote("three", 0.4), promote("two", 0.7)

    assert (worse.promoted, worse.before, repeated.promoted) == (True, None, True)
    assert find_champion(registry, model) == 0.4


def test_a_model_is_identified_by_the_uid_of_its_job(registry, promote, model):
    first = promote("nightly", 0.5, uid="uid-1")
    again = promote("nightly", 0.5, metric="metric", uid="uid-1")
    # A component of an earlier release knows the name only.
    unknown = promote("nightly", 0.5) if isinstance(registry, FolderRegistry) else again
    another = promote("nightly", 0.5, uid="uid-2")

    assert first == again == unknown
    assert (another.promoted, another.before) == (False, 0.5)


def test_versions_are_listed_oldest_first(registry, promote, model):
    for job, value in (("zeta", 0.1), ("alpha", 0.2), ("eta", 0.3)):
        promote(job, value)

    assert [each.metric for each in registry.list_versions(model)] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("change", ["promote", "rollback"])
def test_a_change_of_a_folder_waits_for_the_one_before(tmp_path, change):
    registry = FolderRegistry(tmp_path)
    registry.promote_candidate(build_candidate(tmp_path, "one", 0.5), model="digits")
    registry.promote_candidate(build_candidate(tmp_path, "two", 0.6), model="digits")
    changes = {
        "promote": lambda: registry.promote_candidate(build_candidate(tmp_path, "three", 0.7), model="digits"),
        "rollback": lambda: registry.rollback("digits", "one"),
    }
    with (tmp_path / "digits" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        changer = threading.Thread(target=changes[change])
        changer.start()
        # The kernel lists those that wait for a lock after the one that holds it.
        while not re.search(rf"-> FLOCK .*:{os.fstat(lock.fileno()).st_ino} ", Path("/proc/locks").read_text()):
            assert changer.is_alive()
        before = registry.get_champion("digits").version
        fcntl.flock(lock, fcntl.LOCK_UN)
    changer.join()

    assert (before, registry.get_champion("digits").version) == ("two", {"promote": "three", "rollback": "one"}[change])


def test_a_rollback_by_command_is_respected(registry, promote, model):
    first = promote("one", 0.5)
    promote("two", 0.7)

    registry.rollback(model, first.version)
    repeated, worse_than_before = promote("two", 0.7), promote("three", 0.6)

    assert repeated.promoted
    assert (worse_than_before.promoted, worse_than_before.before) == (True, 0.5)
    assert find_champion(registry, model) == 0.6


def test_a_rollback_to_an_unknown_version_names_the_known_ones(registry, promote, model):
    first = promote("one", 0.5)

    with pytest.raises(InvalidRequestError, match=f"its versions are {first.version}"):
        registry.rollback(model, "99")


def test_another_alias_has_a_champion_of_its_own(registry, promote, model):
    promote("one", 0.5)
    promote("two", 0.4, alias="staging")

    assert find_champion(registry, model) == 0.5
    assert registry.get_champion(model, "staging") is not None
    assert model in registry.list_models()


def test_promoters_at_the_same_time_leave_the_alias_at_the_best(registry, promote, model):
    values = [round(0.5 + number / 100, 2) for number in range(8)]
    random.Random(7).shuffle(values)  # noqa: S311 -- no secret
    threads = [threading.Thread(target=promote, args=(f"job-{value}", value)) for value in values]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert find_champion(registry, model) == max(values)


@pytest.mark.deep
def test_24_promoters_killed_at_random_instants_leave_the_alias_at_the_best(relay, model, tmp_path, ask):
    numbers = random.Random(24)  # noqa: S311 -- no secret
    chances = {"before": 0.06, "after": 0.14}
    lock = threading.Lock()

    def cut(path):
        with lock:
            drawn = numbers.random()
        return next((when for when, chance in chances.items() if drawn < chance), None)

    relay.cut = cut
    candidates = [build_candidate(tmp_path, f"job-{number}", number / 100) for number in range(24)]
    numbers.shuffle(candidates)
    answers, kills = [], []

    def run(candidate):
        for _ in range(60):
            with MlflowRegistry(MlflowServer(relay.uri)) as each:
                try:
                    answers.append(each.promote_candidate(candidate, model=model))
                except TrackingError:
                    kills.append(candidate.job)
                else:
                    return

    threads = [threading.Thread(target=run, args=(each,)) for each in candidates]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert len(answers) == 24
    assert kills
    assert ask("alias", model=model, alias="champion")["tags"]["trainjob.metric"] == "0.23"
    assert len(ask("versions", model=model)) == 24
    assert all(each.before is None or each.metric > each.before for each in answers if each.promoted)


#: Functions that change files: a promotion calls them about forty times.
CHANGES = {"open", "write", "replace", "mkdir", "flock", "rmdir", "unlink"}


def promote_until_killed(folder, candidate, calls, options):
    """Promote in a forked process that is killed before its n-th call of a function that changes files."""
    remaining = iter(range(calls))

    def count(frame, event, function):
        if event == "c_call" and function.__name__ in CHANGES and next(remaining, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    FolderRegistry(folder).promote_candidate(candidate, **options)
    os._exit(0)


def promote_until_killed_in_child(folder, candidate, calls, **options):
    """Promote in a process that is killed before its n-th change of files; return its exit code."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=promote_until_killed, args=(folder, candidate, calls, options))
    process.start()
    process.join()
    return process.exitcode


def build_model_folder(folder, name, value):
    (folder / name).mkdir()
    (folder / name / "model.bin").write_text(name)
    return Candidate(name, (folder / name).as_uri(), "accuracy", value)


def read_model(version):
    return Path(unquote(urlsplit(version.uri).path), "model.bin").read_text()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("meanwhile", [0.6, 0.8], ids=["a worse one", "a better one"])
def test_a_promoter_of_a_folder_that_is_killed_at_any_instant_and_repeated_leaves_the_alias_at_the_best(
    tmp_path, meanwhile
):
    first, killed, other = (
        build_model_folder(tmp_path, name, value) for name, value in (("one", 0.5), ("two", 0.7), ("three", meanwhile))
    )
    answers, calls, exitcode = set(), 0, -signal.SIGKILL
    while exitcode:
        calls += 1
        registry = FolderRegistry(tmp_path / f"registry-{calls}")
        registry.promote_candidate(first, model="digits")
        exitcode = promote_until_killed_in_child(tmp_path / f"registry-{calls}", killed, calls, model="digits")
        had_moved = registry.get_champion("digits").version == "two"
        decisions = (tmp_path / f"registry-{calls}" / "digits/decisions").glob("two@champion.json")
        has_ended = any("done" in json.loads(path.read_text()) for path in decisions)

        answer = registry.promote_candidate(other, model="digits")
        repeated = registry.promote_candidate(killed, model="digits")

        assert (answer.promoted, answer.before) == ((meanwhile > 0.7, 0.7) if had_moved else (True, 0.5))
        # Where it is neither champion nor had ended, it is compared again.
        compared = 0.5 if had_moved and (has_ended or not answer.promoted) else meanwhile
        assert (repeated.promoted, repeated.before) == (compared < 0.7, compared)
        assert registry.promote_candidate(other, model="digits") == replace(answer, uri=repeated.uri)
        assert registry.get_champion("digits").metric == max(0.7, meanwhile)
        versions = registry.list_versions("digits")
        assert [read_model(each) for each in versions] == [each.version for each in versions]
        answers.add((answer.promoted, repeated.promoted))

    assert exitcode == 0
    assert calls > 20
    assert len(answers) == 2


def test_an_alias_that_a_person_moved_is_respected(mlflow_uri, model, tmp_path, ask):
    with MlflowRegistry(MlflowServer(mlflow_uri)) as registry:
        first = registry.promote_candidate(build_candidate(tmp_path, "one", 0.5), model=model)
        registry.promote_candidate(build_candidate(tmp_path, "two", 0.7), model=model)
        ask("set_alias", model=model, alias="champion", version=first.version)

        worse = registry.promote_candidate(build_candidate(tmp_path, "three", 0.4), model=model)
        kept = registry.get_champion(model).version
        better = registry.promote_candidate(build_candidate(tmp_path, "four", 0.6), model=model)

        assert (worse.promoted, worse.before, kept) == (False, 0.5, first.version)
        assert (better.promoted, better.before, registry.get_champion(model).version) == (True, 0.5, better.version)


def test_local_files_can_be_downloaded_by_alias_with_the_real_client(mlflow_uri, model, tmp_path, ask):
    folder = tmp_path / "digits"
    (folder / "weights").mkdir(parents=True)
    (folder / "weights" / "model.bin").write_bytes(b"weights")
    with MlflowRegistry(MlflowServer(mlflow_uri)) as registry:
        registry.promote_candidate(Candidate("job", folder.as_uri(), "accuracy", 0.5), model=model)

    downloaded = Path(ask("download", uri=f"models:/{model}@champion", folder=str(tmp_path / "downloaded")))

    assert [path.read_bytes() for path in downloaded.rglob("model.bin")] == [b"weights"]


def test_a_folder_keeps_each_promoted_model_although_its_job_is_deleted(tmp_path):
    registry = FolderRegistry(tmp_path / "registry")
    for name, value in (("one", 0.5), ("two", 0.6)):
        candidate = build_model_folder(tmp_path, name, value)
        registry.promote_candidate(candidate, model="digits")
        shutil.rmtree(tmp_path / name)

    assert [read_model(each) for each in registry.list_versions("digits")] == ["one", "two"]


def test_a_promoted_outcome_in_a_folder_has_the_name_metrics_and_uid_of_its_job(tmp_path):
    (tmp_path / "model.bin").write_text("weights")
    outcome = build_outcome(
        artifacts={"model": (tmp_path / "model.bin").as_uri()}, metrics={"accuracy": 0.5, "loss": 1.5}
    )
    promotion = FolderRegistry(tmp_path).promote(
        outcome, model="digits", metric="loss", mode="min", min_delta=0.25, alias="smallest"
    )

    entry = json.loads((tmp_path / "digits" / "smallest.json").read_text())
    assert entry == {
        "version": "nightly", "mode": "min", "metric": 1.5, "metric_name": "loss", "uid": "uid-1",
        "path": "versions/nightly/model.bin", "metrics": {"accuracy": 0.5, "loss": 1.5}, "number": 1,
    }  # fmt: skip
    assert promotion == Promotion(True, "nightly", (tmp_path / "digits" / entry["path"]).as_uri(), 1.5)


def test_an_outcome_is_promoted_if_it_is_better_at_all_unless_a_difference_is_asked_for(tmp_path):
    registry, artifacts = FolderRegistry(tmp_path), {"model": "s3://models/digits"}
    for uid, value in (("uid-1", 0.5), ("uid-2", 0.51)):
        ref = TrainJobRef("local", "/home", "nightly", uid).to_dict()
        outcome = build_outcome(ref=ref, artifacts=artifacts, metrics={"accuracy": value})
        assert registry.promote(outcome, model="digits", metric="accuracy").promoted


@pytest.mark.parametrize("uri", ["s3://models/digits", "file://other-host/models/digits"])
def test_a_folder_records_where_a_model_of_another_place_is(tmp_path, uri):
    promotion = FolderRegistry(tmp_path).promote_candidate(Candidate("job", uri, "accuracy", 0.5), model="digits")

    assert (promotion.uri, FolderRegistry(tmp_path).get_champion("digits").uri) == (uri, uri)


def test_a_model_that_is_not_there_or_cannot_be_copied_is_refused_and_nothing_is_left(registry, model, tmp_path):
    folder = tmp_path / "model"

    def refuse(message):
        with pytest.raises(InvalidRequestError, match=message):
            registry.promote_candidate(Candidate("job", folder.as_uri(), "accuracy", 0.5), model=model)

    refuse(r"there is no model at .*/model")
    folder.mkdir()
    (folder / "weights").symlink_to("gone")
    refuse(r"model/weights is a broken link")
    (folder / "weights").unlink()
    os.mkfifo(folder / "weights")
    refuse(r"model/weights is neither a file nor a folder")
    (folder / "weights").unlink()
    (folder / "weights").symlink_to(folder)
    refuse(r"model/weights is a link to a folder above it")

    assert (registry.list_versions(model), registry.get_champion(model)) == ([], None)
    assert list((tmp_path / "registry").glob("*/versions/**/*")) == []


@pytest.mark.parametrize("name", ["100%.txt", "ä ö&b=c+d;e.txt", "..b"])
def test_a_file_is_kept_under_its_name(registry, model, tmp_path, request, name):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / name).write_text("weights")
    registry.promote_candidate(Candidate("job", (tmp_path / "digits").as_uri(), "accuracy", 0.5), model=model)

    assert read_files(registry, model, tmp_path, request) == {name: "weights"}


@pytest.mark.parametrize("name", ["a#b.txt", "a?b.txt", "a%23b.txt"])
def test_a_file_that_an_mlflow_server_does_not_take_is_named_and_nothing_is_sent(relay, tmp_path, name):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / name).write_text("weights")
    candidate = Candidate("job", (tmp_path / "digits").as_uri(), "accuracy", 0.5)
    with (
        MlflowRegistry(MlflowServer(relay.uri)) as registry,
        pytest.raises(InvalidRequestError, match=re.escape(f"digits/{name} cannot be uploaded")),
    ):
        registry.promote_candidate(candidate, model="odd-names")

    assert not [path for _, path, _ in relay.seen if "artifacts" in path or "runs/create" in path]


def test_a_model_is_created_before_its_first_version(relay, model):
    # A server with basic authentication lets a user create versions only of a model that exists.
    with MlflowRegistry(MlflowServer(relay.uri)) as registry:
        registry.promote_candidate(Candidate("job", "s3://models/digits", "accuracy", 0.5), model=model)

    created = [path.rpartition("mlflow/")[2] for _, path, _ in relay.seen if path.endswith("/create")]
    assert created == ["registered-models/create", "model-versions/create"]


def read_files(registry, model, folder, request):
    """Return the files of the champion: those of the folder, or as the real mlflow client downloads them."""
    place = Path(unquote(urlsplit(registry.get_champion(model).uri).path))
    if isinstance(registry, MlflowRegistry):
        ask = request.getfixturevalue("ask")
        place = Path(ask("download", uri=f"models:/{model}@champion", folder=str(folder / "downloaded")))
    files = {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}
    return {name: text for name, text in files.items() if name != "registered_model_meta"}


def test_files_that_the_training_logged_are_no_part_of_the_model(mlflow_uri, model, tmp_path, request):
    api = MlflowApi(MlflowServer(mlflow_uri), 30.0)
    run_id = api.create_run("0", "nightly", {}, 1)
    root = api.get_run(run_id).info.artifact_uri.partition(":")[2].lstrip("/")
    candidate = build_model_folder(tmp_path, "one", 0.5)
    api.upload(f"{root}/model/logged.bin", tmp_path / "one" / "model.bin")
    api.close()
    with MlflowRegistry(MlflowServer(mlflow_uri)) as registry:
        registry.promote_candidate(replace(candidate, run_id=run_id), model=model)

        assert read_files(registry, model, tmp_path, request) == {"model.bin": "one"}


@pytest.mark.parametrize(("metric", "mode"), [("loss", "min"), ("accuracy", "min")])
def test_the_only_version_is_compared_otherwise_only_if_that_is_asked_for(registry, promote, model, metric, mode):
    first = promote("one", 0.83, uid="uid-1")
    with pytest.raises(InvalidRequestError, match=r"compares accuracy \(max\)"):
        promote("one", 0.83, metric=metric, mode=mode, uid="uid-1")

    assert promote("one", 0.83, uid="uid-1") == first
    assert promote("one", 0.83, metric=metric, mode=mode, replace_metric=True, uid="uid-1").promoted


def test_a_second_alias_leaves_the_record_of_the_first(registry, promote, model):
    promote("one", 0.83, uid="uid-1")
    first = registry.list_versions(model)
    promote("one", 7.0, metric="latency", mode="min", alias="fastest", uid="uid-1")

    assert [replace(each, aliases=("champion",)) for each in registry.list_versions(model)] == first
    assert promote("two", 0.8).before == 0.83
    assert promote("three", 8.0, metric="latency", mode="min", alias="fastest").before == 7.0


def test_a_version_that_a_person_registered_keeps_the_alias(mlflow_uri, model, tmp_path, ask):
    with MlflowRegistry(MlflowServer(mlflow_uri)) as registry:
        registry.promote_candidate(build_candidate(tmp_path, "one", 0.5), model=model)
        foreign = registry._api.post("model-versions/create", name=model, source="s3://models/own")
        ask("set_alias", model=model, alias="champion", version=foreign["model_version"]["version"])

        answer = registry.promote_candidate(build_candidate(tmp_path, "two", 0.9), model=model)

        assert (answer.promoted, registry.get_champion(model).uri) == (False, "s3://models/own")


def test_a_link_in_a_model_is_copied_as_the_file_that_it_leads_to(tmp_path):
    candidate = build_model_folder(tmp_path, "one", 0.5)
    (tmp_path / "one" / "model.bin").rename(tmp_path / "weights")
    (tmp_path / "one" / "model.bin").symlink_to(tmp_path / "weights")
    FolderRegistry(tmp_path / "registry").promote_candidate(candidate, model="digits")
    (tmp_path / "weights").unlink()

    assert read_model(FolderRegistry(tmp_path / "registry").get_champion("digits")) == "one"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "best"}, "mode must be max or min, got 'best'"),
        ({"min_delta": -0.1}, "min_delta must be a number of at least 0, got -0.1"),
        ({"min_delta": float("nan")}, "min_delta must be a number of at least 0, got nan"),
        ({"min_delta": float("inf")}, "min_delta must be a number of at least 0, got inf"),
        ({"alias": "a/b"}, "alias must be letters"),
    ],
)
def test_a_wrong_argument_is_refused_and_nothing_is_registered(tmp_path, options, message):
    with pytest.raises(InvalidRequestError, match=message):
        FolderRegistry(tmp_path).promote_candidate(build_candidate(tmp_path, "job", 0.5), model="digits", **options)

    assert not (tmp_path / "digits").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_metric_that_cannot_be_compared_is_refused(value):
    with pytest.raises(InvalidRequestError, match="give a finite number"):
        Candidate("job", "s3://models/digits", "accuracy", value)


def test_a_folder_that_is_no_registry_is_refused_and_left_alone(tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "current.json").write_text("{}")
    with pytest.raises(InvalidRequestError, match=r"current.json is not that of a registry"):
        FolderRegistry(tmp_path).promote_candidate(build_candidate(tmp_path, "job", 0.5), model="digits")

    assert (tmp_path / "digits" / "current.json").read_text() == "{}"


def test_models_are_listed_by_name_and_the_folder_itself_has_the_empty_name(tmp_path):
    registry = FolderRegistry(tmp_path)
    for model in ("b", "a", ""):
        registry.promote_candidate(Candidate("job", "s3://models/digits", "accuracy", 0.5), model=model)

    assert registry.list_models() == ["", "a", "b"]


@pytest.mark.parametrize(
    ("home", "folder"), [("/data/jobs", "/data/jobs/registry"), ("", "/home/me/.trainjob/registry")]
)
def test_the_default_registry_is_beside_the_jobs_of_this_machine(monkeypatch, home, folder):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("TRAINJOB_HOME", home)
    monkeypatch.setenv("HOME", "/home/me")
    registry = open_registry()

    assert (type(registry), registry._folder) == (FolderRegistry, Path(folder))


def test_a_model_elsewhere_stays_there(mlflow_uri, model, ask):
    outcome = build_outcome(artifacts={"model": "s3://models/digits"})
    with MlflowRegistry(MlflowServer(mlflow_uri)) as registry:
        promotion = registry.promote(outcome, model=model, metric="accuracy")

    assert promotion.uri == f"models:/{model}@champion"
    assert ask("alias", model=model, alias="champion")["source"] == "s3://models/digits"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_during_a_promotion_does_not_delay_the_next_one(tmp_path, monkeypatch):
    context = multiprocessing.get_context("fork")
    end, write, children = context.Event(), registry_module._write_json, []

    def fork_and_write(path, data):
        children.append(context.Process(target=end.wait, args=(60,)))
        children[-1].start()
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(registry_module, "_write_json", fork_and_write)
        FolderRegistry(tmp_path).promote_candidate(build_candidate(tmp_path, "first", 0.5), model="digits")
    promotion = FolderRegistry(tmp_path).promote_candidate(build_candidate(tmp_path, "second", 0.6), model="digits")
    are_alive = {child.is_alive() for child in children}
    end.set()
    for child in children:
        child.join()

    assert promotion.promoted
    assert are_alive == {True}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "has no artifact 'model', only none"),
        ({"metrics": {}}, "reported no metric 'accuracy'; it reported none"),
        ({"status": "Failed"}, "is Failed and has no model"),
    ],
)
def test_an_outcome_without_a_model_is_refused(tmp_path, fields, message):
    with pytest.raises(InvalidRequestError, match=message):
        FolderRegistry(tmp_path).promote(build_outcome(**fields), model="digits", metric="accuracy")


@pytest.mark.parametrize("alias", ["latest", "Latest", "v1", "best.one"])
def test_an_alias_that_mlflow_refuses_is_refused_before_anything_is_sent(relay, tmp_path, alias):
    with (
        MlflowRegistry(MlflowServer(relay.uri)) as registry,
        pytest.raises(InvalidRequestError, match="takes no alias"),
    ):
        registry.promote_candidate(build_candidate(tmp_path, "job", 1.0), model="digits", alias=alias)

    assert relay.seen == []


def test_a_conflict_of_two_writers_in_the_database_of_the_server_is_tried_again(relay, model, tmp_path):
    conflict = b'{"error_code": "BAD_REQUEST", "message": "(sqlite3.IntegrityError) UNIQUE constraint failed"}'
    conflicts = []

    def respond(path):
        is_first = path.endswith(("set-tag", "registered-models/alias")) and path not in conflicts
        conflicts.extend([path] if is_first else [])
        return (400, {}, conflict) if is_first else None

    relay.respond = respond
    with MlflowRegistry(MlflowServer(relay.uri)) as registry:
        promotion = registry.promote_candidate(build_candidate(tmp_path, "job", 1.0), model=model)

        assert (promotion.promoted, registry.get_champion(model).version) == (True, promotion.version)
    assert len(conflicts) == 3


def test_an_upload_is_redirected_with_its_content(relay, model, tmp_path, ask):
    relay.respond = lambda path: (
        (307, {"Location": f"{path}?again"}, b"") if "mlflow-artifacts" in path and "?again" not in path else None
    )
    with MlflowRegistry(MlflowServer(relay.uri)) as registry:
        registry.promote_candidate(build_candidate(tmp_path, "job", 1.0), model=model)

    folder = str(tmp_path / "downloaded")
    downloaded = Path(ask("download", uri=f"models:/{model}@champion", folder=folder))
    assert [path.read_text() for path in downloaded.rglob("job.bin")] == ["job"]


def test_a_model_that_the_server_copies_for_ten_minutes_is_registered_once(relay, model, ask):
    timeouts = []

    def respond(path):
        if path.endswith("model-versions/create"):
            timeouts.append(registry._api._connection._connection.sock.gettimeout())

    relay.respond = respond
    with MlflowRegistry(MlflowServer(relay.uri)) as registry:
        registry.promote_candidate(Candidate("job", "s3://models/digits", "accuracy", 1.0), model=model)

    assert (ask("versions", model=model), set(timeouts)) == (["1"], {600.0})


@pytest.mark.parametrize("name", ["../other", "a/b", ".hidden"])
def test_a_model_name_never_leads_out_of_the_folder(tmp_path, name):
    with pytest.raises(InvalidRequestError, match="model must be letters"):
        FolderRegistry(tmp_path / "registry").promote_candidate(build_candidate(tmp_path, "job", 1), model=name)


def test_a_registry_that_is_neither_a_folder_nor_a_server_is_refused():
    with pytest.raises(InvalidRequestError, match="absolute path or file:// URI, or http"):
        open_registry("s3://bucket/registry")


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path):
    (tmp_path / "file").write_text("no folder")
    registry = FolderRegistry(tmp_path / "file" / "registry")

    with pytest.raises(
        InvalidRequestError, match=r"registry .*/file/registry.* cannot be written: Not a directory; name"
    ):
        registry.promote_candidate(build_candidate(tmp_path, "job", 1), model="digits")


@pytest.fixture
def ended(tmp_path):
    """The outcome of a job that left a model, without its stamp where the job has recorded none."""
    file = tmp_path / "weights.bin"
    file.write_text("of lr=0.1")
    uri = file.as_uri()
    fields = {"artifacts": {"model": uri}, "finished_at": "2026-01-01T00:00:00Z"}
    return file, build_outcome(stamps=artifact_stamps.read_stamps({"model": uri}), **fields)


@pytest.mark.parametrize("changed", [{}, {"stamps": None}], ids=["stamp", "time"])
def test_a_model_that_another_training_overwrote_is_refused_by_name(registry, model, ended, changed):
    file, outcome = ended
    file.write_text("of lr=0.5")
    with pytest.raises(InvalidRequestError) as refused:
        registry.promote(replace(outcome, **changed), model=model, metric="accuracy")
    assert str(refused.value) == (
        f"artifact 'model' of TrainJob 'nightly': {file.as_uri()} was written again after the TrainJob had ended; "
        "train again, and let each training write to its own place"
    )
    assert registry.list_versions(model) == []


def test_a_model_without_a_record_of_its_files_is_promoted(registry, model, ended):
    _, outcome = ended
    without = replace(outcome, stamps=None, finished_at=None)
    assert registry.promote(without, model=model, metric="accuracy").promoted


def test_a_promoted_model_is_promoted_again_with_the_same_answer_after_its_origin_was_overwritten(
    registry, model, ended
):
    file, outcome = ended
    first = registry.promote(outcome, model=model, metric="accuracy")
    file.write_text("of lr=0.5")
    assert registry.promote(outcome, model=model, metric="accuracy") == first
    assert registry.promote(outcome, model=model, metric="accuracy", alias="staging").promoted


def test_a_model_that_is_overwritten_while_it_is_copied_is_refused_and_leaves_nothing(tmp_path, ended, monkeypatch):
    file, outcome = ended
    copy = shutil.copyfile

    def copy_during_another_training(source, target):
        file.write_text("of lr=0.5")
        return copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copy_during_another_training)
    registry = FolderRegistry(tmp_path / "registry")
    with pytest.raises(InvalidRequestError, match="was written again"):
        registry.promote(outcome, model="digits", metric="accuracy")
    assert registry.list_versions("digits") == []
    assert [path for path in (tmp_path / "registry").rglob("*") if path.name == file.name] == []


def test_a_model_that_this_process_cannot_read_is_promoted_with_a_warning(tmp_path, ended, monkeypatch, caplog):
    for name, value in {"AWS_ENDPOINT_URL": "ftp://no-url", "AWS_ACCESS_KEY_ID": "a"}.items():
        monkeypatch.setenv(name, value)
    _, outcome = ended
    stored = replace(outcome, artifacts={"model": "s3://bucket/model"})
    assert FolderRegistry(tmp_path / "registry").promote(stored, model="digits", metric="accuracy").promoted
    assert "artifact 'model' of TrainJob 'nightly' is promoted unchecked: AWS_ENDPOINT_URL must be" in caplog.text
