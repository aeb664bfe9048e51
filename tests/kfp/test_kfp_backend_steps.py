"""The double of the KFP backend: the container of a step, its output and its end (rows 6, 20, 27 and 28)."""

import pytest
from kfp import dsl
from kfp_programs import compiled, run_python


def one_step(source):
    @dsl.container_component
    def step():
        return run_python(source)

    @dsl.pipeline(name="one-step")
    def pipeline():
        step().set_retry(1)

    return pipeline


@pytest.fixture
def run(make_backend, tmp_path):
    def run(source, on_line=lambda step, line: None, **settings):
        backend = make_backend(**settings)
        return backend.run(compiled(one_step(source), tmp_path), on_line=on_line)

    return run


def test_each_try_has_a_file_system_of_its_own(run):
    source = "print(os.path.exists('/tmp/left')); pathlib.Path('/tmp/left').touch(); sys.exit(1)"
    finished = run(source, retry_policy=None)

    logs = [end.log for end in finished.task("step").tries]
    assert logs == ["False\n", "False\n"]


def test_this_machine_is_read_only_and_its_temporary_files_are_hidden(run, tmp_path):
    finished = run(f"print(os.path.exists({str(tmp_path)!r}), flush=True); open('/usr/file', 'w')")

    log = finished.task("step").log
    assert log.startswith("False\n")
    assert "Read-only file system: '/usr/file'" in log


def test_the_program_is_no_root_without_capabilities_and_its_home_is_read_only(run):
    finished = run(
        "status = open('/proc/self/status').read()\n"
        "print(os.getuid(), os.getgid(), 'CapEff:\\t0000000000000000' in status, os.path.expanduser('~'))\n"
        "print(os.access(os.path.expanduser('~'), os.W_OK))"
    )

    assert finished.task("step").log == "1000 1000 True /\nFalse\n"


def test_a_step_has_the_variables_of_kfp_and_of_the_image(run):
    finished = run(
        "print(*(os.environ.get(name) for name in ('KFP_RETRY_INDEX', 'KFP_RUN_ID', 'COLOUR', 'no_proxy')))\n"
        "print(os.environ['KFP_POD_NAME'].startswith('one-step-'), 'KFP_POD_UID' in os.environ)",
        image_environment={"COLOUR": "blue"},
        proxies={"no_proxy": "localhost"},
    )

    assert finished.task("step").log == "0 None blue localhost\nTrue True\n"


def test_stdout_and_stderr_are_one_pipe_and_no_terminal(run):
    finished = run("print(sys.stdout.isatty(), flush=True); print('error', file=sys.stderr)")

    assert finished.task("step").log == "False\nerror\n"


LEAVE_A_CHILD = "import subprocess; subprocess.Popen(['sleep', '1000']); print('done')"


def test_a_child_that_keeps_the_output_keeps_the_step_running(run, monkeypatch):
    monkeypatch.setattr("kfp_backend.container.CLOSES_WITHIN", 0.2)

    finished = run(LEAVE_A_CHILD)

    assert (finished.phase, finished.task("step").log) == ("Failed", "done\n")
    assert "keeps its output: the step never ends" in finished.task("step").message


def test_without_published_logs_a_step_ends_with_its_program(run):
    assert run(LEAVE_A_CHILD, publish_logs=False).phase == "Succeeded"


HANDLE = """
import signal
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'SIGTERM\\n'), os._exit(143)))
os.write(1, b'ready\\n')
signal.pause()
"""


def terminate_when_ready(kill_after, seen=None):
    def on_line(step, line):
        if seen is not None:
            seen.append(line)
        if line == "ready":
            step.terminate_run(kill_after)

    return on_line


def test_sigterm_reaches_the_program_and_nothing_is_published(run):
    finished = run(HANDLE, terminate_when_ready(600))

    node = finished.task("step")
    assert (finished.phase, node.log, node.tries[0].program.code) == ("Failed", "ready\nSIGTERM\n", 143)
    assert (finished.artifacts("step"), node.execution.state) == ({}, "RUNNING")


def test_sigterm_reaches_the_children_of_the_program_too(run):
    child = "import signal, time; print('child', flush=True); time.sleep(1000)"
    source = f"import subprocess; child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
    wait = "child.stdout.readline()\n" + HANDLE.replace(
        "os._exit(143)", "os.write(1, b'%d\\n' % child.wait()), os._exit(143)"
    )

    finished = run(source + wait, terminate_when_ready(600))

    assert finished.task("step").log == "ready\nSIGTERM\n-15\n"


def test_a_program_in_a_session_of_its_own_gets_no_sigterm(run):
    finished = run(f"os.setsid()\n{HANDLE}", terminate_when_ready(0.3))

    assert (finished.task("step").log, finished.task("step").tries[0].program.code) == ("ready\n", -9)


@pytest.mark.parametrize("kill_after", [0, 0.5, 1])
def test_what_a_program_still_does_is_cut_off_after_at_most_a_second(run, kill_after):
    stubborn = HANDLE.replace("os._exit(143)", "time.sleep(1000)")

    finished = run(stubborn, terminate_when_ready(kill_after))

    assert finished.task("step").tries[0].program.code == -9


def test_a_terminated_task_is_not_tried_again(run):
    finished = run(HANDLE, terminate_when_ready(0))

    assert len(finished.task("step").tries) == 1


def test_a_step_that_is_drained_is_tried_again(run):
    tries = []

    def on_line(step, line):
        tries.append(line)
        step.evict(600) if tries.count("ready") == 1 and line == "ready" else None

    finished = run(HANDLE.replace("signal.pause()", "os.environ['KFP_RETRY_INDEX'] == '1' or signal.pause()"), on_line)

    assert (finished.phase, tries) == ("Succeeded", ["ready", "SIGTERM", "ready"])


def test_a_missing_program_fails_the_step(make_backend, tmp_path):
    @dsl.container_component
    def step():
        return dsl.ContainerSpec(image="python:3.11", command=["no-such-program"])

    @dsl.pipeline(name="missing")
    def pipeline():
        step()

    finished = make_backend().run(compiled(pipeline, tmp_path))

    assert (finished.phase, finished.task("step").log) == (
        "Failed",
        "exec no-such-program: No such file or directory\n",
    )
