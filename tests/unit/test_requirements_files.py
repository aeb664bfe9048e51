"""`packages_to_install` as a requirements.txt, pyproject.toml or uv.lock of the project."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from trainer_core import CustomTrainer
from trainer_core.backends.debug import DebugBackend
from trainer_core.packaging.requirements_file import read_requirements
from trainer_core.request_builder import build_request_data

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
        return read_requirements(file, tmp_path)

    return read


def test_a_requirements_file_is_read_with_those_that_it_includes(read):
    text = "# comment\n-r base.txt\npandas==2.3.0  # exact\nscikit-learn \\\n  >=1.5\nx @ https://e.org/x.whl#egg=x\n-e .\n\n."
    assert read("requirements.txt", requirements_txt=text, base_txt="numpy==2.2.6 ; python_version >= '3.10'\n") == [
        "numpy==2.2.6 ; python_version >= '3.10'",
        "pandas==2.3.0",
        "scikit-learn >=1.5",
        "x @ https://e.org/x.whl#egg=x",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--index-url https://u:p@e.org", r"requirements\.txt:2: --index-url is not supported; give pip_index_urls"),
        ("-c constraints.txt", r"requirements\.txt:2: -c is not supported; write the versions"),
        ("a==1 --hash=sha256:00", r"--hash is not supported; export the file without hashes"),
        ("-e ../other", r"-e is not supported; name its folder in code"),
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
    with pytest.raises(ValueError, match=r"uv\.lock: other is a folder of this machine"):
        read("uv.lock", uv_lock=text)
    with pytest.raises(ValueError, match="is not the lock file of its folder"):
        read("uv.lock", uv_lock="version = 1\n")


def test_the_request_has_the_packages_of_the_file_of_the_project(tmp_path):
    (tmp_path / "train.py").write_text("def main(): pass\n")
    (tmp_path / "requirements.txt").write_text("numpy==2.2.6\n")
    trainer = CustomTrainer("train:main", code=tmp_path, packages_to_install="requirements.txt")
    data = build_request_data(backend=DebugBackend, trainer=trainer)
    assert data["trainer"]["packages"] == ["numpy==2.2.6"]
