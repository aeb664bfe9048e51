"""The option Reuse of the command: what submit and render print."""

from __future__ import annotations

import json

JOB = """
name: {name}
runtime: python
trainer: {{func: "train:train", func_args: {{x: 3}}, packages_to_install: {packages}}}
options: [{{Reuse: {{within: 30d}}}}]
"""


def write(trainjob, name, packages="[]"):
    (trainjob.folder / "job.yaml").write_text(JOB.format(name=name, packages=packages))


def test_submit_takes_the_result_of_an_earlier_job_and_prints_which(trainjob, caplog):
    write(trainjob, "monday")
    first = trainjob("submit", "--file", "job.yaml", "--wait")
    write(trainjob, "tuesday")
    second = trainjob("submit", "--file", "job.yaml", "--wait")
    data = json.loads(trainjob("submit", "--file", "job.yaml", "--wait", "-o", "json").stdout)

    assert [done.returncode for done in (first, second)] == [0, 0]
    assert second.stdout == first.stdout
    assert "reused monday of 20" in caplog.text
    assert (data["ref"]["name"], data["ref"]["reused"]) == ("monday", True)
    assert trainjob("get", "tuesday").returncode != 0


def test_render_prints_the_key_or_what_is_unknown(trainjob):
    write(trainjob, "monday")
    known = trainjob("render", "--file", "job.yaml")
    write(trainjob, "tuesday")
    again = trainjob("render", "--file", "job.yaml")
    write(trainjob, "monday", packages="[numpy]")
    unknown = trainjob("render", "--file", "job.yaml")

    assert known.stderr.startswith("trainjob: Reuse: key ")
    assert again.stderr == known.stderr
    assert unknown.stderr == ("trainjob: Reuse: no key, because not all is known: package numpy: no version (==)\n")
