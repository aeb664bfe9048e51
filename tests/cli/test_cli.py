"""Subcommands for TrainJobs on the local backend: results, exit codes and messages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from manual_backend import ManualBackend

from trainer_core import DebugBackendConfig, TrainerClient
from trainer_core.client.runs import JobRuns
from trainer_core.model.jobs import RestartCause, Restarts
from trainer_core.model.request import TrainJobRequest

RUN = ("--runtime", "python")


def test_submit_and_wait_print_the_result_of_a_function(trainjob):
    done = trainjob("submit", "train:train", "-a", "x=3", "-a", "rate=0.25", *RUN, "--name", "job", "--wait")

    assert (done.returncode, done.stdout) == (0, "job Complete {'x': 3, 'accuracy': 0.25}\n")
    assert "job Complete 100%" in done.stderr


def test_submit_prints_the_name_for_other_commands(trainjob):
    name = trainjob("submit", "train:train", "-a", "x=3", *RUN).stdout.strip()

    assert trainjob("wait", name).returncode == 0
    assert "x is 3, rate is 0.5" in trainjob("logs", name).stdout
    assert trainjob.json("get", name)["outcome"]["metrics"] == {"loss": 0.25, "x": 3.0, "accuracy": 0.5}


def test_a_failed_job_exits_with_1_and_prints_the_reason(trainjob):
    done = trainjob("submit", "train:train", "-a", "x=3", "-a", "fail=true", *RUN, "--wait")

    assert done.returncode == 1
    assert "ValueError: as asked (a retry will not help); debug it with `trainjob " in done.stderr.splitlines()[-1]
    assert "line " in done.stderr


def test_a_job_of_a_partition_is_listed_by_it_and_has_the_trace_of_the_command(trainjob, monkeypatch):
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    monkeypatch.setenv("TRACEPARENT", trace)
    option = '{"Partition": "EMEA north"}'
    trainjob("submit", "train:train", "-a", "x=3", *RUN, "--name", "job", "--option", option)
    monkeypatch.setenv("TRACEPARENT", "no trace")
    trainjob("submit", "train:train", "-a", "x=4", *RUN, "--name", "other", "--option", "Partition=emea-north")
    listed = trainjob("list", "--partition", "EMEA north", "-c", "name,partition").stdout.splitlines()

    assert [line.split() for line in listed] == [["NAME", "PARTITION"], ["job", "EMEA", "north"]]
    requests = [trainjob.folder / "home" / "jobs" / name / "request.json" for name in ("job", "other")]
    assert [json.loads(each.read_text()).get("traceparent") for each in requests] == [trace, None]


def test_submit_prints_that_the_local_backend_starts_a_training_again(trainjob):
    done = trainjob("submit", "train:train", "-a", "x=3", *RUN, "--option", '{"RestartPolicy": {"max_restarts": 1}}')
    assert "trainjob: RestartPolicy: restarts are made by the local backend\n" in done.stderr


def test_a_definition_in_yaml_is_submitted(trainjob):
    definition = {
        "name": "from-file",
        "runtime": "python",
        "trainer": {"func": "train:train", "func_args": {"x": 7}},
        "labels": {"team": "vision"},
        "active_deadline_seconds": 3600,
    }
    (trainjob.folder / "job.yaml").write_text(yaml.safe_dump(definition))
    done = trainjob("submit", "--file", "job.yaml", "--wait", "-o", "json")

    assert json.loads(done.stdout)["result"] == {"x": 7, "accuracy": 0.5}
    assert trainjob.json("get", "from-file")["labels"] == {"team": "vision"}


def test_the_request_of_a_job_can_be_submitted_again_under_another_name(trainjob):
    trainjob("submit", "train:train", "-a", "x=3", *RUN, "--name", "first", "--wait")
    request = trainjob.folder / "home" / "jobs" / "first" / "request.json"
    done = trainjob("submit", "--file", str(request), "--name", "second", "--wait")

    assert done.stdout == "second Complete {'x': 3, 'accuracy': 0.5}\n"


def test_submitting_the_same_request_twice_creates_one_job(trainjob):
    arguments = ("submit", "train:train", "-a", "x=3", *RUN, "--name", "job", "--wait")

    assert trainjob(*arguments).stdout == trainjob(*arguments).stdout
    assert trainjob.jobs == ["job"]


def test_another_request_with_the_same_name_exits_with_4(trainjob):
    trainjob("submit", "train:train", "-a", "x=3", *RUN, "--name", "job", "--wait")
    done = trainjob("submit", "train:train", "-a", "x=4", *RUN, "--name", "job")

    assert done.returncode == 4
    assert "exists with another request" in done.stderr


def test_initialize_prints_the_uri_of_the_fetched_data(trainjob):
    (trainjob.folder / "data").mkdir()
    (trainjob.folder / "data" / "a.txt").write_text("a")
    done = trainjob("initialize", "--dataset", (trainjob.folder / "data").as_uri(), "--wait", "-o", "json")

    assert json.loads(done.stdout)["result"]["dataset"].startswith("file:///")


def test_logs_are_followed_until_the_job_has_ended(trainjob):
    gate = trainjob.folder / "gate"
    trainjob("submit", "train:wait_for", "-a", f"path={gate}", *RUN, "--name", "job")
    following = trainjob.start("logs", "-f", "job")

    assert following.stdout.readline() == "waiting\n"
    gate.touch()
    assert following.wait() == 0
    following.communicate()


def test_ctrl_c_ends_the_wait_and_not_the_job(trainjob):
    gate = trainjob.folder / "gate"
    trainjob("submit", "train:wait_for", "-a", f"path={gate}", *RUN, "--name", "job")
    waiting = trainjob.start("wait", "job")
    waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate()

    assert waiting.returncode == 130
    assert "TrainJob job is still running; wait for it again with `trainjob wait job`" in err
    gate.touch()
    assert trainjob("wait", "job").returncode == 0


def test_further_attempts_follow_a_failure_against_which_a_retry_helps(trainjob):
    killed = ("submit", "train:ends_by_a_signal", "-a", f"deaths={trainjob.folder}/deaths", "-a", "times=2", *RUN)
    done = trainjob(*killed, "--name", "job", "--wait", "--attempts", "3")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "job-2 Complete done")
    assert "; job-1 is the next attempt\n" in done.stderr
    assert trainjob("list", "-o", "json").stdout.count('"Failed"') >= 2


def test_the_last_attempt_is_final_and_so_is_a_mistake_of_the_user(trainjob):
    killed = ("submit", "train:ends_by_a_signal", "-a", f"deaths={trainjob.folder}/deaths", "-a", "times=9", *RUN)
    assert trainjob(*killed, "--name", "job", "--wait", "--attempts", "2").returncode == 1
    mistake = ("submit", "train:train", "-a", "x=1", "-a", "fail=true", *RUN, "--name", "wrong", "--wait")
    assert trainjob(*mistake, "--attempts", "2").returncode == 1
    names = {job["name"] for job in json.loads(trainjob("list", "-o", "json").stdout)}
    assert names == {"job", "job-1", "wrong"}


def test_attempts_without_a_wait_are_refused(trainjob):
    done = trainjob("submit", "train:train", "-a", "x=1", *RUN, "--attempts", "2")
    assert (done.returncode, done.stderr) == (
        2,
        "trainjob: --attempts needs --wait: a failure is noticed by who waits for the TrainJob\n",
    )


def test_a_timeout_of_a_wait_exits_with_5(trainjob):
    trainjob("submit", "train:wait_for", "-a", "path=never", *RUN, "--name", "job")

    assert trainjob("wait", "job", "--timeout", "0.2").returncode == 5


def said(done):
    """Return the exit code and the line that a command printed."""
    return done.returncode, (done.stdout or done.stderr).rstrip("\n")


def test_submitting_a_name_again_says_that_nothing_new_was_started(trainjob):
    submit = ("submit", "train:train", "-a", "x=1", "-a", "fail=true", *RUN, "--name", "job", "--wait")
    assert "nothing new" not in trainjob(*submit).stderr
    again = trainjob(*submit)
    assert again.returncode == 1
    assert again.stderr.startswith(
        "trainjob: TrainJob 'job' exists and is Failed: nothing new was started; continue it with `trainjob retry job`"
    )


def test_a_job_is_suspended_resumed_cancelled_and_deleted(trainjob):
    trainjob("submit", "train:wait_for", "-a", "path=never", *RUN, "--name", "job")

    assert re.fullmatch("job suspended: it was (Created|Running)\n", trainjob("suspend", "job").stdout)
    assert trainjob("resume", "job").stdout.startswith("job resumed: it was ")
    assert trainjob("cancel", "job").stdout.startswith("job cancelled: it was ")
    trainjob("wait", "job")
    assert said(trainjob("cancel", "job")) == (0, "job has already ended: it is Failed")
    refused = "trainjob: TrainJob 'job' is Failed and cannot be {}; continue a failed one with `trainjob retry job`"
    assert said(trainjob("suspend", "job")) == (1, refused.format("suspended"))
    assert said(trainjob("resume", "job")) == (1, refused.format("resumed"))
    assert "it was cancelled" in trainjob.json("get", "job")["reason"]
    assert [event["reason"] for event in trainjob.json("events", "job")][-1] == "Failed"
    assert said(trainjob("delete", "job")) == (0, "job deleted")
    assert trainjob("delete", "job").returncode == 3
    assert trainjob.json("list") == []


def test_list_prints_one_line_for_each_job_newest_first(trainjob):
    for name in ("first", "second"):
        trainjob("submit", "train:train", "-a", "x=1", *RUN, "--name", name, "--wait")
    lines = trainjob("list").stdout.splitlines()

    assert [line.split()[:3] for line in lines] == [
        ["NAME", "STATUS", "RUNTIME"],
        ["second", "Complete", "python"],
        ["first", "Complete", "python"],
    ]


def test_runtimes_lists_runtimes_and_the_packages_of_one(trainjob):
    assert [runtime["name"] for runtime in trainjob.json("runtimes")] == ["python", "torch-distributed", "trl-llm"]
    assert any(package.startswith("pydantic==") for package in trainjob.json("runtimes", "python")["packages"])


def test_render_prints_the_manifest_and_creates_nothing(trainjob):
    rendered = yaml.safe_load(trainjob("render", "train:train", "-a", "x=1", *RUN, "--name", "job").stdout)

    assert [step["name"] for step in rendered["steps"]] == ["node-0"]
    assert trainjob.jobs == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("submit", "train:train", "-a", "x=1", "--runtime", "nope"),
            3,
            "runtime 'nope' does not exist.*python, torch-distributed",
        ),
        (("submit", "train:train", *RUN), 2, "x"),
        (("submit", "train:train", "-a", "x=many", *RUN), 2, "x.*many"),
        (("submit", "train:train", "-a", "x", *RUN), 2, "--arg must be name=value"),
        (("submit", "train:train", "-a", "x=1", "-a", "x=2", *RUN), 2, "--arg x= is given twice; give it once"),
        (("submit", "train:train", "-a", "x=one", *RUN), 2, "--arg x: 'one' is not an int"),
        (("submit", "train:train", *RUN), 2, "train requires x; add --arg NAME=VALUE$"),
        (("submit", "train:train", "-a", "x=1", *RUN, "--option", "{["), 2, "is neither Name=value.* nor JSON"),
        (("submit", "train:train", "-a", "x=1", *RUN, "--option", "Moon=1"), 2, "unknown option Moon; known are"),
        (
            ("submit", "train:nothing", *RUN),
            2,
            "it has the functions ends_by_a_signal, train, uses_a_global, wait",
        ),
        (("submit", "train:LIMIT.nothing", *RUN), 2, r"no attribute 'nothing'; it has the functions \(none\)"),
        (
            ("submit", "nothing:main", *RUN),
            2,
            "named 'nothing'; change to the folder that contains nothing, or install it",
        ),
        (("submit", "no.thing:main", *RUN), 2, "named 'no'; change to the folder that contains no, or install it"),
        (("submit", "train.py", *RUN), 2, "module:function"),
        (("submit", "train.py:train", *RUN), 2, "named 'train.py'.*write the module without .py: train$"),
        (("submit", "train:uses_a_global", *RUN), 2, "LIMIT"),
        (("submit", *RUN), 2, "module:function, a definition with --file"),
        (("submit", "train:train", "-a", "x=1", *RUN, "--name", "a/b"), 2, "job name 'a/b'"),
        (("submit", "train:train", "-a", "x=1", *RUN, "--nodes", "-1"), 2, "num_nodes"),
        (("submit", "train:train", "-a", "x=1", *RUN, "--dataset", "file:///nowhere"), 2, "/nowhere does not exist"),
        (("submit", "--file", "nowhere.yaml"), 2, "nowhere.yaml cannot be read: /.* does not exist; give the path"),
        (("submit", "train:train", "--file", "job.yaml"), 2, "train:train and --file cannot be used together"),
        (
            ("submit", "--image", "train:1.0", "-a", "x=1", "-p", "numpy"),
            2,
            "--arg, --package cannot be used without a training function",
        ),
        (("submit", "--image", "train:1.0", *RUN), 2, "image"),
        (("initialize",), 2, "--dataset URI"),
        (("get", "missing"), 3, "TrainJob 'missing' does not exist"),
        (("wait", "missing"), 3, "TrainJob 'missing' does not exist"),
        (("wait", "../jobs"), 3, "TrainJob '../jobs' does not exist"),
        (("get", ""), 3, "TrainJob '' does not exist"),
        (("get", "a" * 300), 3, "TrainJob 'aaa"),
        (("submit", ".train:train", *RUN), 2, "module:function"),
        (("submit", "train:train", "-a", "x=1", *RUN, "--timeout", "5"), 2, "--timeout needs --wait"),
        (("wait", "missing", "--timeout", "-1"), 2, "--timeout"),
        (("--backend", "moon", "list"), 2, "unknown backend 'moon'; known are"),
        (("launch",), 2, "launch"),
        (("list", "--wrong"), 2, "--wrong"),
    ],
)
def test_an_error_is_one_line_and_creates_nothing(trainjob, arguments, code, message):
    done = trainjob(*arguments)

    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith("trainjob: ")
    assert re.search(message, line)
    assert trainjob.jobs == []


def test_an_unknown_key_of_a_definition_is_rejected_with_the_known_keys(trainjob):
    (trainjob.folder / "job.yaml").write_text("trainr: {}")
    done = trainjob("submit", "--file", "job.yaml")

    assert done.returncode == 2
    assert "unknown key trainr; known are name, runtime, trainer" in done.stderr


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("def main(:", "SyntaxError"),
        ("import not_there", "install not_there, or import it inside the function"),
        ("raise RuntimeError('no data')", "RuntimeError: no data"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_is_invalid_input(trainjob, module, message):
    (trainjob.folder / "broken.py").write_text(module)
    done = trainjob("submit", "broken:main", *RUN)

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert message in line


def test_a_module_may_change_the_working_directory_and_the_search_path(trainjob):
    module = "import os, sys\nos.chdir('/')\nsys.path.pop(0)\ndef main():\n    return 'it ran'\n"
    (trainjob.folder / "wanders.py").write_text(module)
    out, err = trainjob.start("submit", "wanders:main", *RUN, "--name", "job", "--wait").communicate()

    assert out == "job Complete it ran\n", err


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"suspend": "no"}, "suspend must be true or false, got 'no'"),
        ({"initializer": 5}, "Initializer must be a dict"),
    ],
)
def test_a_value_of_the_wrong_type_in_a_definition_is_rejected(trainjob, definition, message):
    trainer = {"func": "train:train", "func_args": {"x": 1}}
    (trainjob.folder / "job.yaml").write_text(yaml.safe_dump({"runtime": "python", "trainer": trainer, **definition}))
    done = trainjob("submit", "--file", "job.yaml")

    assert done.returncode == 2
    assert message in done.stderr
    assert trainjob.jobs == []


def test_arguments_and_options_of_the_command_line_are_added_to_a_definition(trainjob):
    trainer = {"func": "train:train", "func_args": {"x": 1, "rate": 0.5}}
    definition = {"runtime": "python", "trainer": trainer, "options": [{"Labels": {"team": "a"}}]}
    (trainjob.folder / "job.yaml").write_text(yaml.safe_dump(definition))
    checkpoints = ["--option", '{"Checkpoints": {"every_steps": 2}}', "--option", "ActiveDeadlineSeconds=600"]
    trainjob("submit", "-f", "job.yaml", "-a", "x=7", *checkpoints, "--name", "job", "--wait")

    request = TrainerClient().get_job_request("job")
    assert request.work.trainer.code.args == {"x": 7, "rate": 0.5}
    assert (request.policy.metadata.labels, request.policy.checkpoints.every_steps) == ({"team": "a"}, 2)
    assert request.policy.active_deadline_seconds == 600


def test_a_generated_name_begins_with_the_name_of_the_function(trainjob):
    assert re.fullmatch(r"wait-for-[0-9a-f]{10}\n", trainjob("submit", "train:wait_for", "-a", "path=/", *RUN).stdout)


def test_without_a_subcommand_the_help_is_all(trainjob):
    done = trainjob()
    assert (done.returncode, done.stderr) == (2, "")


def test_a_missing_module_that_the_project_names_is_installed_from_its_file(trainjob):
    (trainjob.folder / "pyproject.toml").write_text('[project]\nname = "a"\ndependencies = ["Not-There>=1"]\n')
    (trainjob.folder / "needs.py").write_text("def main():\n    import not_there\n")
    (trainjob.folder / "loads.py").write_text("import not_there\n\n\ndef main():\n    pass\n")

    last = trainjob("submit", "needs:main", *RUN, "--wait").stderr.splitlines()[-1]
    assert last.endswith("; pyproject.toml names it: add -r pyproject.toml")
    assert "pyproject.toml names it: add -r pyproject.toml" in trainjob("submit", "loads:main", *RUN).stderr


def test_flags_of_functions_are_rejected_with_a_definition(trainjob):
    (trainjob.folder / "job.yaml").write_text("trainer: {func: 'train:train'}")

    assert (
        "--nodes cannot be used with --file; set it in the definition"
        in trainjob("submit", "-f", "job.yaml", "--nodes", "2").stderr
    )


def test_a_closed_pipe_is_not_an_error(trainjob):
    (trainjob.folder / "talks.py").write_text("def main():\n    print('line\\n' * 100_000)\n")
    trainjob("submit", "talks:main", *RUN, "--name", "job", "--wait")
    with trainjob.start("logs", "job") as reading:
        assert reading.stdout.readline() == "line\n"
        reading.stdout.close()
        assert (reading.wait(300), reading.stderr.read()) == (0, "")


def test_an_error_of_standard_output_is_one_line(trainjob):
    with Path("/dev/full").open("w") as full, trainjob.start("runtimes", stdout=full) as running:
        error = running.stderr.read()

    assert (running.returncode, error) == (6, "trainjob: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(("descriptor", "arguments", "code"), [(1, ["runtimes"], 0), (2, ["get", "no-job"], 3)])
def test_what_goes_to_an_output_that_the_shell_has_closed_is_discarded(trainjob, descriptor, arguments, code):
    with trainjob.start(*arguments, preexec_fn=lambda: os.close(descriptor)) as running:
        assert (*running.communicate(timeout=100), running.returncode) == ("", "", code)


def test_help_lists_the_exit_codes(trainjob):
    assert "5 timeout of a wait" in " ".join(trainjob("submit", "--help").stdout.split())


def test_the_error_of_a_missing_extra_has_the_pip_command():
    program = "import sys; sys.modules['typer'] = None; from trainer_core.cli import main; sys.exit(main(['list']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "trainjob: the command needs the package typer, which is not installed: "
        "pip install -e '.[cli]' in a clone of trainjob-workflows\n"
    )


def test_several_jobs_are_deleted_and_none_if_one_does_not_exist(trainjob):
    for name in ("one", "two", "three"):
        trainjob("submit", "train:train", "-a", "x=1", *RUN, "--name", name, "--wait")

    assert trainjob("delete", "one", "absent").returncode == 3
    assert trainjob("delete", "one", "two").stdout == "one deleted\ntwo deleted\n"
    assert [job["name"] for job in trainjob.json("list")] == ["three"]


def test_finished_jobs_are_deleted_and_no_other_one(trainjob):
    trainjob("submit", "train:train", "-a", "x=1", *RUN, "--name", "ended", "--wait")
    trainjob("submit", "train:wait_for", "-a", "path=never", *RUN, "--name", "running")

    assert trainjob("delete", "--finished").stdout == "ended deleted\n"
    assert [job["name"] for job in trainjob.json("list")] == ["running"]
    assert trainjob("delete").returncode == trainjob("delete", "running", "--finished").returncode == 2


@pytest.fixture
def memory(monkeypatch):
    """A backend in memory, which the command uses."""
    client = TrainerClient(DebugBackendConfig())
    client.backend = ManualBackend()
    client.runs = JobRuns(client.backend, None, client.get_job_request)
    monkeypatch.setattr("trainer_core.cli.jobs._get_client", lambda context: client)

    def submit(name):
        trainer = {"kind": "container", "image": "train:1"}
        client.submit(TrainJobRequest.parse({"name": name, "trainer": trainer, "runtime": {"name": "python"}}))
        return client.backend

    return submit


def test_a_job_that_a_restart_policy_starts_again_is_not_deleted_until_its_next_attempt_exists(memory, trainjob):
    for name in ("nightly", "other"):
        memory(name).fail(name, retryable=True)
    job = memory("hourly").jobs["nightly"]
    job.outcome = replace(job.outcome, restarts=Restarts(following=RestartCause("NodeLost", delay=600)))
    done = trainjob("delete", "--finished")

    assert (done.stdout, "nightly is kept" in done.stderr) == ("other deleted\n", True)
    memory("nightly-1")
    assert trainjob("delete", "--finished").stdout == "nightly deleted\n"
    assert trainjob("delete", "--finished").stdout == ""


def test_a_job_that_is_deleted_or_replaced_after_the_list_is_not_deleted(memory, trainjob, monkeypatch):
    for name in ("first", "gone", "again"):
        memory(name).complete(name)
    backend = memory("running")
    listed = backend.list_jobs()

    def change_after_the_list():
        for name in ("gone", "again"):
            del backend.jobs[name]
        memory("again")
        return listed

    monkeypatch.setattr(backend, "list_jobs", change_after_the_list)
    done = trainjob("delete", "--finished")

    assert (done.returncode, done.stdout) == (0, "first deleted\n")
    assert sorted(backend.jobs) == ["again", "running"]
