"""`packages_to_install` as a requirements.txt, pyproject.toml or uv.lock of the project."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, strategies as st
from packaging.requirements import Requirement

from trainer_core import CustomTrainer, OnBackend
from trainer_core.backends.debug import DebugBackend
from trainer_core.backends.local.backend import LocalProcessBackend
from trainer_core.definition.request_builder import build_request_data
from trainer_core.packaging.requirements_file import read_packages

# ruff: noqa: E501 -- a line of uv.lock is as long as uv writes it
UV_LOCK = """\
version = 1
revision = 3
requires-python = ">=3.10"

[[package]]
name = "churn"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "numpy", version = "2.2.6", source = { registry = "https://pypi.org/simple" }, marker = "python_full_version < '3.11'" },
    { name = "numpy", version = "2.3.5", source = { registry = "https://pypi.org/simple" }, marker = "python_full_version >= '3.11'" },
    { name = "requests", extra = ["socks"] },
    { name = "scores" },
]

[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "colorama"
version = "0.4.6"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "numpy"
version = "2.2.6"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "numpy"
version = "2.3.5"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "pysocks"
version = "1.7.1"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "pytest"
version = "8.4.2"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "requests"
version = "2.32.3"
source = { registry = "https://pypi.org/simple" }
dependencies = [
    { name = "colorama", marker = "sys_platform == 'win32'" },
    { name = "scores", marker = "sys_platform == 'linux'" },
]

[package.optional-dependencies]
socks = [{ name = "pysocks", marker = "sys_platform == 'linux' or sys_platform == 'darwin'" }]

[[package]]
name = "scores"
version = "1.0"
source = { git = "https://example.com/scores?subdirectory=python&rev=main#0123456789abcdef" }
dependencies = [{ name = "colorama", marker = "os_name == 'nt'" }, { name = "requests" }]
"""


@pytest.fixture
def read(tmp_path):
    """Read a file of a project with these files."""

    def read(file, **files):
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        return read_packages(file, (), tmp_path).requirements

    return read


def test_a_requirements_file_is_read_with_those_that_it_includes(read):
    text = "# comment\n-r base.txt\npandas==2.3.0  # exact\nscikit-learn \\\n  >=1.5\nx @ https://e.org/x.whl#egg=x\n-e .\n\n.\n-e."
    assert read("requirements.txt", requirements_txt=text, base_txt="numpy==2.2.6 ; python_version >= '3.10'\n") == [
        "numpy==2.2.6 ; python_version >= '3.10'",
        "pandas==2.3.0",
        "scikit-learn >=1.5",
        "x @ https://e.org/x.whl#egg=x",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--index-url https://u:p@e.org", r"requirements\.txt:2: --index-url has a user, password or token"),
        ("-i https://${USER}@e.org", r"requirements\.txt:2: -i has a user, password or token"),
        ("--extra-index-url ./wheels", r"requirements\.txt:2: --extra-index-url is no index that the job can reach"),
        ("--extra-index-url https://e.org/simple", r"numpy has no hash, and pip would take it from any of several"),
        (
            "--find-links https://e.org/wheels",
            r"requirements\.txt:2: --find-links is not supported; give pip_index_urls",
        ),
        ("torch==2.6.0+cpu", r"torch==2\.6\.0\+cpu is not on the public index, and the file does not name its index"),
        ("-c constraints.txt", r"requirements\.txt:2: -c is not supported; write the versions"),
        ("a==1 --no-binary", r"--no-binary is not supported; remove it"),
        ("-e ../other", r"requirements\.txt:2: \.\./other is on this machine only; give code a folder"),
        ("--editable=file:///srv/other", r"requirements\.txt:2: /srv/other is on this machine only"),
        ("./libs/shared", r"requirements\.txt:2: \./libs/shared is on this machine only"),
        ("libs/shared[gpu] ; python_version > '3'", r"libs/shared\[gpu\] is on this machine only"),
        ("shared @ file:///srv/shared", r"/srv/shared is on this machine only"),
        ("shared-1.0-py3-none-any.whl", r"shared-1\.0-py3-none-any\.whl is on this machine only"),
        ("-r requirements.txt", r"includes itself; remove the -r"),
        ("-r missing.txt", r"missing\.txt cannot be read: No such file"),
        ("x @ https://user:token@e.org/x.whl", r"contains a URL with a user, password or token"),
    ],
)
def test_what_pip_would_not_install_from_the_request_alone_is_refused(read, line, message):
    with pytest.raises(ValueError, match=message) as refused:
        read("requirements.txt", requirements_txt=f"numpy\n{line}\n")
    assert "u:p" not in str(refused.value)
    assert "token@" not in str(refused.value)


def test_a_pyproject_gives_its_dependencies(read):
    text = '[project]\nname = "x"\ndependencies = ["numpy>=2", "torch"]\n[dependency-groups]\ndev = ["pytest"]\n'
    assert read("pyproject.toml", pyproject_toml=text) == ["numpy>=2", "torch"]
    with pytest.raises(ValueError, match=r"has no list dependencies in \[project\]"):
        read("pyproject.toml", pyproject_toml="[tool.poetry]\n")
    with pytest.raises(ValueError, match="is not TOML"):
        read("pyproject.toml", pyproject_toml="[")


def test_a_lock_file_gives_exact_versions_with_the_markers_of_their_paths(read):
    found = read("uv.lock", uv_lock=UV_LOCK)
    assert found == [
        "colorama==0.4.6 ; (os_name == 'nt') or (sys_platform == 'win32')",
        "numpy==2.2.6 ; (python_full_version < '3.11')",
        "numpy==2.3.5 ; (python_full_version >= '3.11')",
        "pysocks==1.7.1 ; (sys_platform == 'linux' or sys_platform == 'darwin')",
        "requests==2.32.3",
        "scores @ git+https://example.com/scores@0123456789abcdef#subdirectory=python",
    ]
    assert all(Requirement(each) for each in found)


@given(chosen=st.sets(st.sampled_from("abc")))
def test_a_lock_file_gives_what_its_chosen_extras_need(chosen):
    needed = {"a": ["x", "y"], "b": ["y"], "c": ["z"]}
    lines = ["version = 1", "[[package]]", 'name = "own"', 'version = "1"', 'source = { virtual = "." }']
    lines += ['dependencies = [{ name = "base" }]', "[package.optional-dependencies]"]
    lines += [f"{extra} = [" + ", ".join(f'{{ name = "{name}" }}' for name in needed[extra]) + "]" for extra in needed]
    for name in ("base", "x", "y", "z"):
        lines += ["[[package]]", f'name = "{name}"', 'version = "1"']
        lines += ['source = { registry = "https://pypi.org/simple" }']
    with TemporaryDirectory() as folder:
        Path(folder, "uv.lock").write_text("\n".join(lines))
        found = read_packages(f"uv.lock[{','.join(chosen)}]", (), Path(folder)).requirements

    assert found == sorted(f"{name}==1" for name in {"base", *(n for extra in chosen for n in needed[extra])})


def test_an_extra_that_a_file_does_not_have_is_refused(read):
    with pytest.raises(ValueError, match=r"uv.lock has no extra 'gpu'; it has none"):
        read("uv.lock[gpu]", uv_lock=UV_LOCK)
    with pytest.raises(ValueError, match=r"requirements.txt has no extra 'gpu'; it has none"):
        read("requirements.txt[gpu]", requirements_txt="numpy\n")


@pytest.mark.parametrize(
    ("extra", "more"),
    [
        ("gpu", ["xformers==0.1", "scores @ https://e.org/s.zip ; os_name == 'nt'"]),
        ("all", ["xformers==0.1", "scores @ https://e.org/s.zip ; os_name == 'nt'", "foo==1"]),
        ("my-extra", ["foo==1"]),
        (
            "linux",
            [
                "xformers==0.1 ; (sys_platform == 'linux')",
                "scores @ https://e.org/s.zip ; (os_name == 'nt') and (sys_platform == 'linux')",
            ],
        ),
        ("cycle", ["bar"]),
    ],
)
def test_an_extra_that_names_the_project_gives_what_its_other_extras_need(read, extra, more):
    text = """
[project]
name = "acme-train"
dependencies = ["numpy", "acme_train"]
[project.optional-dependencies]
gpu = ["xformers==0.1", "scores @ https://e.org/s.zip ; os_name == 'nt'"]
My_Extra = ["foo==1"]
all = ["Acme.Train[gpu, my.extra]>=1"]
linux = ["acme-train[gpu]; sys_platform == 'linux'"]
cycle = ["bar", "acme-train[cycle]", "acme-train[wheel]"]
wheel = ["acme-train[cycle] ; os_name == 'nt'"]
broken = ["acme-train[none]"]
"""
    found = read(f"pyproject.toml[{extra}]", pyproject_toml=text)
    assert found == ["numpy", *more]
    assert all(Requirement(each) for each in found)
    with pytest.raises(ValueError, match=r"pyproject\.toml has no extra 'none'; it has gpu, my-extra"):
        read("pyproject.toml[broken]", pyproject_toml=text)


@pytest.mark.timeout(60)  # A search through all paths takes hours.
def test_a_lock_file_with_many_paths_to_each_package_is_read_at_once(read):
    lines = ["version = 1"]
    for number in range(150):
        source = 'source = { virtual = "." }' if number == 0 else 'source = { registry = "https://pypi.org/simple" }'
        needed = [f'{{ name = "p{number + step}", marker = "n == \'{step}\'" }}' for step in range(1, 6)]
        plain = f'{{ name = "p{number + 6}" }}'
        dependencies = f"dependencies = [{', '.join([*needed, plain])}]"
        lines += ["[[package]]", f'name = "p{number}"', 'version = "1"', source, dependencies]
    found = read("uv.lock", uv_lock="\n".join(lines))
    assert len(found) == 149
    assert "p6==1" in found
    assert (
        "p7==1 ; (n == '1') or (n == '2') and (n == '3') or (n == '2') and (n == '5') or (n == '3') and (n == '4')"
        in found
    )


def test_a_lock_file_with_a_folder_of_this_machine_is_refused(read):
    other = '[[package]]\nname = "other"\nversion = "1"\nsource = { editable = "../other" }\n'
    text = UV_LOCK.replace('{ name = "scores" },', '{ name = "other" },') + other
    with pytest.raises(ValueError, match=r"uv\.lock: other: \.\./other is on this machine only; give code a folder"):
        read("uv.lock", uv_lock=text)
    with pytest.raises(ValueError, match="is not the lock file of its folder"):
        read("uv.lock", uv_lock="version = 1\n")


def test_the_request_has_the_packages_of_the_file_of_the_project(tmp_path):
    (tmp_path / "train.py").write_text("def main(): pass\n")
    (tmp_path / "requirements.txt").write_text("numpy==2.2.6\n")
    trainer = CustomTrainer("train:main", code=tmp_path, packages_to_install="requirements.txt")
    data = build_request_data(backend=DebugBackend, trainer=trainer)
    assert data["trainer"]["packages"] == ["numpy==2.2.6"]


def test_the_hashes_and_the_index_of_a_file_are_kept(read):
    text = "--index-url=https://e.org/simple\na==1 --hash sha256:00 \\\n  --hash=sha256:11\nb @ https://e.org/b.whl\n"
    assert read("requirements.txt", requirements_txt=text) == [
        "a==1 --hash=sha256:00 --hash=sha256:11 --index-url=https://e.org/simple",
        "b @ https://e.org/b.whl",
    ]
    text = text.partition("b @")[0] + "--extra-index-url https://f.org/simple\n"
    assert read("requirements.txt", requirements_txt=text) == ["a==1 --hash=sha256:00 --hash=sha256:11"]


def test_the_index_of_a_file_and_another_one_for_the_same_packages_are_refused(tmp_path):
    (tmp_path / "requirements.txt").write_text("-i https://e.org/simple\nnumpy\n")
    packages = read_packages("requirements.txt", ["https://e.org/simple"], tmp_path)
    assert packages.index_urls == ["https://e.org/simple"]
    with pytest.raises(ValueError, match=r"requirements\.txt names indexes, and pip_index_urls others"):
        read_packages("requirements.txt", ["https://f.org/simple"], tmp_path)


def test_a_version_of_another_index_is_kept_if_an_index_is_named(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch==2.6.0+cpu\n")
    packages = read_packages("requirements.txt", ["https://e.org/cpu"], tmp_path)
    assert (packages.requirements, packages.index_urls) == (["torch==2.6.0+cpu"], ["https://e.org/cpu"])
    assert read_packages("requirements.txt", (), tmp_path, has_index=True).requirements == ["torch==2.6.0+cpu"]
    assert read_packages(["torch==2.6.0+cpu"], (), tmp_path).requirements == ["torch==2.6.0+cpu"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[tool.uv.sources]\nNum_Py = { index = 'team' }", r"Num_Py in tool\.uv\.sources"),
        ("[tool.uv.sources]\nnum-py = { workspace = true }", r"num-py in tool\.uv\.sources"),
        ("[tool.uv.sources]\nnum-py = [{ path = '../x', marker = 'y' }]", r"num-py in tool\.uv\.sources"),
        ("[tool.poetry.dependencies]\nnum-py = { source = 'team' }", r"num-py in tool\.poetry\.dependencies"),
        (
            "[tool.poetry.dependencies]\nnum-py = [{ git = 'https://e.org/x' }]\nz = { path = 'z' }",
            r"num-py in tool\.poetry\.dependencies",
        ),
        ("[[tool.uv.index]]\nname = 'team'\nurl = 'https://e.org/simple'", "the index team"),
        ("[[tool.poetry.source]]\nname = 'team'\nurl = 'https://e.org/simple'", "the index team"),
        ("[[tool.pdm.source]]\nname = 'team'\nurl = 'https://e.org/simple'", "the index team"),
        ("[tool.uv]\nextra-index-url = ['https://e.org/simple']", "extra-index-url of uv"),
    ],
)
def test_a_pyproject_that_says_where_a_package_comes_from_is_refused(read, table, message):
    text = f"[project]\ndependencies = ['num.py>=2']\n{table}\n"
    with pytest.raises(ValueError, match=rf"pyproject\.toml: {message} says where .* give the uv\.lock"):
        read("pyproject.toml", pyproject_toml=text)


@pytest.mark.parametrize(
    "table",
    [
        "[tool.uv.sources]\nother = { index = 'team' }",
        "[[tool.uv.index]]\nname = 'team'\nurl = 'https://e.org/simple'\nexplicit = true",
        "[[tool.uv.index]]\nurl = 'https://pypi.org/simple/'\ndefault = true",
        "[[tool.poetry.source]]\nname = 'PyPI'\npriority = 'primary'",
        "[tool.poetry.dependencies]\nnum-py = '^2'",
    ],
)
def test_a_pyproject_whose_sources_concern_no_dependency_is_read(read, table):
    assert read("pyproject.toml", pyproject_toml=f"[project]\ndependencies = ['num-py']\n{table}\n") == ["num-py"]


def lock(source, **fields):
    """Return a lock file of a project that needs one package."""
    more = "".join(f"{name} = {value}\n" for name, value in fields.items())
    return (
        "[[package]]\nname = 'job'\nsource = { virtual = '.' }\ndependencies = [{ name = 'tools' }]\n"
        f"[[package]]\nname = 'tools'\nversion = '1.0'\nsource = {{ {source} }}\n{more}"
    )


def test_a_lock_file_gives_the_index_and_the_hashes_of_what_linux_can_install(read):
    names = ["cp310-cp310-win_amd64", "cp310-cp310-macosx_11_0_arm64", "pp310-pypy310_pp73-manylinux2014_x86_64"]
    names += [
        "cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64",
        "cp314-cp314t-musllinux_1_2_aarch64",
        "py3-none-any",
    ]
    urls = [f"{{ url = 'https://e.org/tools-1.0-{name}.whl', hash = 'sha256:{n}' }}" for n, name in enumerate(names)]
    sdist = "{ url = 'https://e.org/tools-1.0.tar.gz', hash = 'sha256:9' }"
    hashes = "--hash=sha256:9 --hash=sha256:3 --hash=sha256:4 --hash=sha256:5"
    wheels = f"[{', '.join(urls)}]"
    text = lock("registry = 'https://e.org/simple'", sdist=sdist, wheels=wheels)
    assert read("uv.lock", uv_lock=text) == [f"tools==1.0 --index-url=https://e.org/simple {hashes}"]
    text = lock("registry = 'https://pypi.org/simple'", sdist=sdist, wheels=wheels)
    assert read("uv.lock", uv_lock=text) == [f"tools==1.0 {hashes}"]
    text = lock("url = 'https://e.org/t.zip', subdirectory = 'sub'", sdist="{ hash = 'sha256:9' }")
    assert read("uv.lock", uv_lock=text) == ["tools @ https://e.org/t.zip#subdirectory=sub --hash=sha256:9"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("registry = 'https://user:word@e.org/simple'", r"uv\.lock: tools: its index has a user, password or token"),
        ("registry = '../wheels'", r"uv\.lock: tools: its index is no index that the job can reach"),
        ("path = '../tools-1.0-py3-none-any.whl'", r"uv\.lock: tools: \.\./tools-1\.0-py3-none-any\.whl is on this"),
        ("directory = 'libs/tools'", r"uv\.lock: tools: libs/tools is on this machine only"),
    ],
)
def test_a_source_of_a_lock_file_that_the_job_cannot_reach_is_refused(read, source, message):
    with pytest.raises(ValueError, match=message):
        read("uv.lock", uv_lock=lock(source))


@pytest.mark.parametrize("named", ["uv.lock", "../../uv.lock", "../../packages/job/uv.lock"])
def test_the_lock_file_of_a_workspace_gives_the_packages_of_the_member_whose_code_travels(tmp_path, named):
    member = tmp_path / "packages" / "job"
    member.mkdir(parents=True)
    root = "[[package]]\nname = 'root'\nsource = { virtual = '.' }\ndependencies = [{ name = 'other' }]\n"
    other = "[[package]]\nname = 'other'\nversion = '2'\nsource = { registry = 'https://pypi.org/simple' }\n"
    text = lock("registry = 'https://pypi.org/simple'").replace("virtual = '.'", "editable = 'packages/job'")
    (tmp_path / "uv.lock").write_text(root + text + other)
    assert read_packages(named, (), member).requirements == ["tools==1.0"]
    assert read_packages("uv.lock", (), tmp_path).requirements == ["other==2"]
    assert read_packages("uv.lock", (), tmp_path / "scripts").requirements == ["other==2"]
    (member / "apart").mkdir()
    (member / "apart" / "pyproject.toml").touch()
    with pytest.raises(ValueError, match=r"is not the lock file of its folder; .* give 'path/to/member/uv\.lock'"):
        read_packages("uv.lock", (), member / "apart")


@pytest.fixture
def workspace(tmp_path):
    """A project with the local packages shared (in src) and flat."""
    for name, text in {
        "train.py": "def main(): pass\n",
        "libs/shared/pyproject.toml": "[project]\nname = 'shared'\ndependencies = ['numpy', 'flat']\n",
        "libs/shared/src/shared/__init__.py": "",
        "libs/flat/pyproject.toml": "[project]\nname = 'flat'\n",
        "libs/flat/flat.py": "",
        "libs/empty/setup.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def build(folder, packages):
    trainer = CustomTrainer("train:main", code=folder, packages_to_install=packages)
    return build_request_data(backend=LocalProcessBackend, trainer=trainer)["trainer"]


def test_a_local_package_of_a_file_travels_with_the_project(workspace):
    (workspace / "requirements.txt").write_text("-e ./libs/shared\nlibs/flat\nnumpy==2.2.6\n")
    trainer = build(workspace, "requirements.txt")
    assert trainer["packages"] == ["numpy==2.2.6"]
    assert trainer["code"]["project"]["roots"] == ["", "libs/shared/src", "libs/flat"]
    assert build(workspace, ["./libs/flat"])["code"]["project"]["roots"] == ["", "libs/flat"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("./libs/shared\n./libs/flat", "shared travels as files and needs numpy, which is not listed; add it"),
        ("./libs/shared\nnumpy", "shared travels as files and needs flat, which is not listed; add it"),
        ("./libs/empty", r"requirements\.txt:1: no module in libs/empty or libs/empty/src travels"),
        ("./libs/absent", r"requirements\.txt:1: \./libs/absent is on this machine only"),
        ("absent[a]@file:///libs/absent", r"requirements\.txt:1: /libs/absent is on this machine only"),
        ("flat-1.0.tar.bz2", r"requirements\.txt:1: flat-1.0.tar.bz2 is on this machine only"),
    ],
)
def test_a_local_package_that_would_not_work_in_the_job_is_refused(workspace, lines, message):
    (workspace / "requirements.txt").write_text(lines)
    with pytest.raises(ValueError, match=message):
        build(workspace, "requirements.txt")


def test_a_file_and_further_packages_are_given_together(workspace):
    (workspace / "uv.lock").write_text(UV_LOCK)
    assert build(workspace, ["uv.lock", "more>=1"])["packages"][-2:] == [
        "scores @ git+https://example.com/scores@0123456789abcdef#subdirectory=python",
        "more>=1",
    ]
    with pytest.raises(ValueError, match="OnBackend packages_to_install takes packages and no file"):
        OnBackend("local", packages_to_install=["uv.lock"])
