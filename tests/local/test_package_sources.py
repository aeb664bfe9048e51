"""Packages come from where a file says, though the default index has others of the same name: real pip, real uv."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from local_jobs import PATIENCE
from package_index import serve_index

from trainer_core.backends.local import environments
from trainer_core.packaging.requirements_file import read_packages

# Environments are built.
pytestmark = pytest.mark.slow

SHARED = {
    "libs/shared/pyproject.toml": "[project]\nname = 'shared'\nversion = '0'\ndependencies = ['basics']\n",
    "libs/shared/src/shared/__init__.py": "VALUE = 'local'\n",
}


def imports_all(names):
    import importlib

    return [importlib.import_module(name).VALUE for name in names]


@pytest.fixture
def indexes(tmp_path, monkeypatch):
    """The default index of this machine, and that of a team: each has tools, as one and as several versions."""
    for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    with serve_index(tmp_path / "default") as default, serve_index(tmp_path / "team") as team:
        for version in ("1.0", "9.0"):
            default.add("tools", version, "namesake", ["basics"])
        default.hash = default.add("basics", "1.0", "default")
        default.add("basics", "2.0", "default 2")
        team.hash = team.add("tools", "1.0", "team", ["basics"])
        monkeypatch.setenv("PIP_INDEX_URL", default.url)
        monkeypatch.setenv("UV_DEFAULT_INDEX", default.url)
        yield default, team


@pytest.fixture(params=["uv", "pip"])
def installer(request, monkeypatch):
    folders = os.environ["PATH"].split(os.pathsep)
    without = os.pathsep.join(folder for folder in folders if not (Path(folder) / "uv").exists())
    monkeypatch.setenv("PATH", {"uv": os.environ["PATH"], "pip": without}[request.param])


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def build_lock(default, team):
    """Return the uv.lock of a project that needs tools of the team."""
    return f"""\
version = 1
[[package]]
name = "job"
version = "0"
source = {{ virtual = "." }}
dependencies = [{{ name = "tools" }}, {{ name = "shared" }}]
[[package]]
name = "tools"
version = "1.0"
source = {{ registry = "{team.url}" }}
dependencies = [{{ name = "basics" }}]
wheels = [{{ url = "{team.url}/tools/tools-1.0-py3-none-any.whl", hash = "{team.hash}" }}]
[[package]]
name = "basics"
version = "1.0"
source = {{ registry = "{default.url}" }}
wheels = [{{ url = "{default.url}/basics/basics-1.0-py3-none-any.whl", hash = "{default.hash}" }}]
[[package]]
name = "shared"
version = "0"
source = {{ editable = "libs/shared" }}
dependencies = [{{ name = "basics" }}]
"""


def build_forms(default, team):
    """Return files of a project, what is given as packages_to_install, and what the training imports from there."""
    locked = f"basics==1.0 --hash={default.hash}\n"
    hashed = f"--extra-index-url {team.url}\n--index-url {default.url}\ntools==1.0 \\\n    --hash={team.hash}\n{locked}"
    exported = f"-e ./libs/shared\n{locked}tools==1.0 --hash={team.hash}\n--index-url {default.url}\n"
    both = f"{exported}--extra-index-url={team.url}\n"
    return {
        "uv.lock": (build_lock(default, team), "uv.lock", ["team", "default", "local"]),
        "hashes": (hashed, "requirements.txt", ["team", "default"]),
        "exported": (both, "requirements.txt", ["team", "default", "local"]),
        "one index": (f"--index-url {team.url}\ntools\n", "requirements.txt", ["team", "in the team"]),
        "list": ("", [f"tools>=1 --index-url={team.url}"], ["team", "default 2"]),
        "more": (build_lock(default, team), ["uv.lock", "extra"], ["team", "default", "local", "extra"]),
    }


@pytest.mark.parametrize("form", ["uv.lock", "hashes", "exported", "one index", "list", "more"])
def test_a_job_trains_with_the_package_of_the_index_that_the_file_names(
    client, ask, indexes, installer, form, tmp_path
):
    default, team = indexes
    team.add("basics", "1.5", "in the team")
    default.add("extra", "1.0", "extra", ["basics"])
    text, packages, values = build_forms(default, team)[form]
    project = write(tmp_path / "project", {**SHARED, "uv.lock": text, "requirements.txt": text})
    names = ["tools", "basics", *(["shared", "extra"][: len(values) - 2])]
    trainer = {"packages_to_install": packages, "code": project}
    ref = client.submit(ask(imports_all, {"names": names}, **trainer))
    assert client.wait(ref, timeout=PATIENCE).result == values


def test_a_package_with_another_hash_than_that_of_the_file_is_not_installed(client, ask, indexes, installer, tmp_path):
    default, team = indexes
    wrong = build_lock(default, team).replace(team.hash, default.hash)
    project = write(tmp_path / "project", {**SHARED, "uv.lock": wrong})
    request = ask(imports_all, {"names": ["tools"]}, packages_to_install="uv.lock", code=project)
    outcome = client.wait(client.submit(request), timeout=PATIENCE)
    assert outcome.diagnosis.reason == "installing tools==1.0 failed with exit code 1"


def test_a_namesake_that_another_package_asks_for_is_not_installed(client, ask, indexes, installer):
    default, team = indexes
    default.add("picky", "1.0", "picky", ["tools>=2"])
    packages = [f"tools --index-url={team.url}", "picky"]
    ref = client.submit(ask(imports_all, {"names": ["tools"]}, packages_to_install=packages))
    assert client.wait(ref, timeout=PATIENCE).diagnosis.reason == "installing picky, tools failed with exit code 1"


def test_the_user_of_an_index_is_taken_from_the_variables_of_the_job(
    client, ask, indexes, installer, tmp_path, monkeypatch
):
    with serve_index(tmp_path / "private", user="me:secret-word") as private:
        digest = private.add("tools", "1.0", "private")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", private.url.replace("://", "://me:secret-word@"))
        packages = [f"tools==1.0 --index-url={private.url} --hash={digest}"]
        ref = client.submit(ask(imports_all, {"names": ["tools"]}, packages_to_install=packages))
        assert client.wait(ref, timeout=PATIENCE).result == ["private"]
    assert "secret-word" not in "\n".join(client.get_job_logs("job"))


#: Installs what a container's request has, as the second program of a container does.
INSTALL = """
import json, sys
from trainer_core.node.packages import ensure_packages
print("python", ensure_packages(json.loads(sys.argv[1])))
"""


def test_a_container_installs_the_package_of_the_index_that_the_file_names(ask, indexes, tmp_path):
    default, team = indexes
    project = write(tmp_path / "project", {**SHARED, "uv.lock": build_lock(default, team)})
    (tmp_path / "tmp").mkdir()
    trainer = ask(imports_all, {"names": ["tools"]}, packages_to_install="uv.lock", code=project).work.trainer
    wanted = json.dumps({"packages": trainer.packages, "index_urls": trainer.pip_index_urls})
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    installed = subprocess.run([sys.executable, "-c", INSTALL, wanted], env=env, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    python = installed.stdout.splitlines()[-1].removeprefix("python ")
    printed = subprocess.check_output([python, "-c", "import tools, basics; print(tools.VALUE, basics.VALUE)"])
    assert printed == b"team default\n"


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_what_uv_itself_locks_for_a_member_of_a_workspace_is_installed(client, ask, indexes, tmp_path):
    default, team = indexes
    python = "version = '0'\nrequires-python = '>=3.10'\n"
    index = f"[[tool.uv.index]]\nname = 'team'\nurl = '{team.url}'\nexplicit = true\n"
    build = "[build-system]\nrequires = []\nbuild-backend = 'none'\n"
    member = "dependencies = ['tools', 'shared']\n[tool.uv.sources]\ntools = { index = 'team' }\n"
    member += "shared = { workspace = true }\n"
    files = {
        "pyproject.toml": f"[project]\nname = 'root'\n{python}dependencies = ['extra']\n{index}"
        "[tool.uv.workspace]\nmembers = ['jobs/*', 'libs/*']\n",
        "jobs/night/pyproject.toml": f"{build}[project]\nname = 'night'\n{python}{member}",
        "jobs/night/src/night.py": "import shared, tools\n\ndef main():\n    return [tools.VALUE, shared.VALUE]\n",
        **SHARED,
        "libs/shared/pyproject.toml": f"{build}[project]\nname = 'shared'\n{python}dependencies = ['basics']\n",
    }
    default.add("extra", "1.0", "extra")
    workspace = write(tmp_path / "workspace", files)
    subprocess.run(
        [shutil.which("uv", path="/usr/bin:/usr/local/bin:" + os.environ["PATH"]) or "uv", "lock"],
        cwd=workspace,
        check=True,
    )
    request = ask("night:main", packages_to_install="jobs/night/uv.lock", code=workspace)
    assert [each.partition(" ")[0] for each in request.work.trainer.packages] == ["basics==2.0", "tools==1.0"]
    assert client.wait(client.submit(request), timeout=PATIENCE).result == ["team", "local"]
    from_the_member = ask("night:main", packages_to_install="uv.lock", code=workspace)
    assert [each.partition(" ")[0] for each in from_the_member.work.trainer.packages] == ["extra==1.0"]
    with pytest.raises(ValueError, match=r"uv\.lock: shared: libs/shared is on this machine only; give code a folder"):
        ask("night:main", packages_to_install="uv.lock", code=workspace / "jobs/night")


def lock_of(model, urls, hashes, is_hashed):
    """Return the uv.lock of a project that needs the first package, which needs the second one and so on."""
    lines = ['[[package]]\nname = "job"\nsource = { virtual = "." }\ndependencies = [{ name = "one" }]']
    for name, needed in itertools.pairwise([*model, None]):
        index = model[name]
        hashed = f', hash = "{hashes[index, name]}"' if is_hashed else ""
        lines.append(
            f'[[package]]\nname = "{name}"\nversion = "1.0"\nsource = {{ registry = "{urls[index]}" }}\n'
            f"dependencies = [{f'{{ name = {needed!r} }}' if needed else ''}]\n"
            f'wheels = [{{ url = "{urls[index]}/{name}/{name}-1.0-py3-none-any.whl"{hashed} }}]'
        )
    return "\n".join(lines)


def requirements_of(model, urls, hashes, is_hashed):
    lines = [f"--index-url {urls['default']}", f"--extra-index-url {urls['team']}"]
    return "\n".join([*lines, *(f"{n}==1.0" + f" --hash={hashes[i, n]}" * is_hashed for n, i in model.items())])


def pyproject_of(model, urls, hashes, is_hashed):
    indexes = "".join(f"[[tool.uv.index]]\nname = '{n}'\nurl = '{url}'\nexplicit = true\n" for n, url in urls.items())
    sources = "".join(f"{name} = {{ index = '{index}' }}\n" for name, index in model.items())
    return f"[project]\ndependencies = {list(model)}\n{indexes}[tool.uv.sources]\n{sources}"


FORMS = {"uv.lock": lock_of, "requirements.txt": requirements_of, "pyproject.toml": pyproject_of}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    indexes_of=st.lists(st.sampled_from(["default", "team"]), min_size=3, max_size=3),
    form=st.sampled_from(list(FORMS)),
    is_hashed=st.booleans(),
)
def test_what_is_installed_is_what_the_file_says_or_nothing_is(indexes, tmp_path_factory, indexes_of, form, is_hashed):
    """The model is the index of each package. A file of which pip cannot keep it is refused, or fails."""
    folder = tmp_path_factory.mktemp("model")
    model = dict(zip(["one", "two", "three"], indexes_of, strict=True))
    needs = {"one": ["two"], "two": ["three"], "three": []}
    served = dict(zip(["default", "team"], indexes, strict=True))
    hashes = {(i, name): served[i].add(name, "1.0", f"{i} {name}", needs[name]) for i in served for name in model}
    served["default"].add("one", "9.0", "namesake", ["two"])
    urls = {name: index.url for name, index in served.items()}
    (folder / form).write_text(FORMS[form](model, urls, hashes, is_hashed))
    found = install(folder, form, model)
    assert found in ({name: f"{index} {name}" for name, index in model.items()}, *REFUSALS[form])


#: A lock file is always followed.
REFUSALS = {"uv.lock": [], "requirements.txt": ["refused", "failed"], "pyproject.toml": ["refused"]}


def install(folder, form, names):
    """Return what is installed for a file, by name, or how it ended without."""
    try:
        packages = read_packages(form, (), folder)
    except ValueError:
        return "refused"
    spec = {"packages": sorted(packages.requirements), "index_urls": packages.index_urls}
    try:
        with (folder / "log").open("wb") as log:
            environments.build_environment(folder, spec, log, {})
    except environments.EnvironmentBuildError:
        return "failed"
    python = environments.get_interpreter(folder, spec)
    code = f"import json; print(json.dumps({{n: __import__(n).VALUE for n in {list(names)}}}))"
    return json.loads(subprocess.check_output([python, "-c", code]))
