"""The files of a project that travel with a training function: which ones, how they are packed, what is refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from trainer_core import CustomTrainer
from trainer_core.backends.debug import DebugBackend
from trainer_core.backends.local.job_store import StateFolder
from trainer_core.definition.request_builder import build_request
from trainer_core.model.request import Code
from trainer_core.node import load_function, project as node_project
from trainer_core.packaging import argv_payload, project as packed_project, serializer
from trainer_core.packaging.project import read_files, read_project


@pytest.fixture
def tree(tmp_path):
    """Writes files below a folder and returns it."""
    root = tmp_path / "project"
    root.mkdir()

    def write(files):
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return write


def paths(code, folder=None):
    return read_project(code, folder).list_paths()


def noise(size):
    return random.Random(3).randbytes(size)  # noqa: S311 -- nothing secret


# ---- which files travel ------------------------------------------------------------------------------------------


def test_what_gitignore_and_trainjobignore_name_does_not_travel(tree):
    root = tree(
        {
            ".git/HEAD": "",
            ".gitignore": "*.log\n/data/\n!keep.log\n",
            ".trainjobignore": "notebooks\n",
            "train.py": "",
            "a.log": "",
            "keep.log": "",
            "data/x.csv": "",
            "notebooks/a.ipynb": "",
            "pkg/data/y.csv": "",
            "pkg/.gitignore": "*.tmp\n!a.log\n",
            "pkg/z.tmp": "",
            "pkg/a.log": "",
        }
    )
    assert paths(root) == [
        *(".gitignore", ".trainjobignore", "keep.log"),
        *("pkg/.gitignore", "pkg/a.log", "pkg/data/y.csv", "train.py"),
    ]


NAMES = st.sampled_from(["a", "b", "ab", "data", "é", "x.py", "a.txt", "B", "1", "-", ".h", "[", "a b"])
TREES = st.recursive(
    st.none(), lambda trees: st.dictionaries(NAMES, st.one_of(st.none(), trees), min_size=1, max_size=4), max_leaves=12
)
PIECES = ["*", "**", "?", "a", "b", "data", "é", "*.py", "[!a]", "[^b]", "[a-c]", "[[:alpha:]]", "[[:digit:]]*", "[]a]"]
PIECES += [
    "\\a",
    "\\*",
    "é*",
    "?1",
    "a*b",
    "*a*",
    "**a",
    "a**",
    "[é]",
    "[a",
    "[\\]a]",
    "[b-a]",
    "a\\ b",
    "[!-a]",
    "[[:x:]]",
]
RULES = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "", "!", "/", "#", "\\#", "!/", "\ufeff"]),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("/".join),
    st.sampled_from(["", "", "/", "/**", "//"]),
    st.sampled_from(["", "", "", "  ", "\\ ", "\t", "\r", " \\"]),
)
IGNORE_FILES = st.lists(RULES, max_size=4).map("\n".join)


@given(tree=st.dictionaries(NAMES, TREES, max_size=4), rules=IGNORE_FILES, inner=IGNORE_FILES)
@settings(max_examples=20)
@example(tree={"a": {"b": {"a": None}}, "data": {"1": None}}, rules="*/\n!/a/\n!/a/**/\n**/b/**", inner="")
@example(tree={"ab": None, "kept": None, "aab": {"x": None}}, rules="*?*.t?t\n!*a*a/x*t*\n*a*a*b\n", inner="\\\n!\n[")
def test_git_and_a_project_leave_out_the_same_files(tree, rules, inner):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        write_tree(root, {**tree, "kept": None, "data": {"a": None, "b": {"x.py": None}}})
        (root / ".gitignore").write_bytes(rules.encode())
        (root / "data" / ".gitignore").write_bytes(inner.encode())
        for command in (["init", "--quiet"], ["-c", "core.excludesFile=", "ls-files", "-coz", "--exclude-standard"]):
            done = subprocess.run(["git", *command], cwd=root, check=True, capture_output=True)
        expected = sorted(os.fsdecode(each) for each in done.stdout.split(b"\0") if each)
        (root / ".trainjobignore").write_text("!/always\n/.trainjobignore\n")
        (root / "always").touch()

        assert paths(root) == sorted([*expected, "always"])


def write_tree(folder, tree):
    folder.mkdir()
    for name, inside in tree.items():
        if inside is None:
            (folder / name).touch()
        else:
            write_tree(folder / name, inside)


def test_the_trainjobignore_of_a_folder_can_include_what_its_gitignore_leaves_out(tree):
    root = tree({".gitignore": "*.bin\n", ".trainjobignore": "!small.bin\n", "small.bin": "", "large.bin": ""})
    assert "small.bin" in paths(root)
    assert "large.bin" not in paths(root)


def test_the_gitignore_of_the_repository_holds_for_a_folder_in_it_and_no_further_one(tree):
    root = tree({".gitignore": "*.py\n", "repo/.git/HEAD": "", "repo/.gitignore": "*.csv\n", "repo/src/a.py": ""})
    (root / "repo/src/b.csv").touch()
    assert paths(root / "repo/src") == ["a.py"]


def test_version_control_caches_and_environments_do_not_travel(tree):
    root = tree(
        {
            "train.py": "",
            ".git/config": "",
            "pkg/__pycache__/a.pyc": "",
            "b.pyc": "",
            ".venv/x.py": "",
            "my-env/pyvenv.cfg": "",
            "my-env/lib/x.py": "",
            ".mypy_cache/x": "",
            "node_modules/a.js": "",
        }
    )
    assert paths(root) == ["train.py"]


def test_a_link_is_followed_inside_the_folder_only(tree, tmp_path):
    root = tree({"train.py": "", "shared/a.py": "X = 1\n", ".git/config": "token"})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/private.txt").write_text("private")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "out.txt").symlink_to(tmp_path / "outside/private.txt")
    (root / "gone").symlink_to("nowhere")
    (root / "config").symlink_to(".git/config")
    (root / "shared/loop").symlink_to("..")
    (root / "again").symlink_to("shared")
    project = read_project(root)
    assert project.list_paths() == ["again/a.py", "shared/a.py", "train.py"]
    assert project.files["again/a.py"] == b"X = 1\n"
    for code in (["out"], ["out.txt"]):
        with pytest.raises(ValueError, match=r"is a link out of .*; copy what it points to"):
            read_project(code, root)


@pytest.mark.timeout(60)  # Matched by every way to share the name among the stars, it takes hours.
def test_a_pattern_of_many_stars_is_matched_at_once(tree):
    root = tree({".gitignore": "*a*a*a*a*a*b\n", "a" * 250: "", "a" * 249 + "b": ""})
    assert paths(root) == [".gitignore", "a" * 250]


def test_folders_that_link_to_each_other_travel_behind_two_links_at_most(tree):
    names = "abcdefg"
    root = tree({f"{name}/x.py": "" for name in names})
    for name in names:
        for other in names.replace(name, ""):
            (root / name / other).symlink_to(f"../{other}")
    found = paths(root)
    assert {"a/x.py", "a/b/x.py", "a/b/c/x.py"} < set(found)
    assert len(found) == 7 + 7 * 6 + 7 * 6 * 5
    assert len(paths(["a*"], root)) == 1 + 6 + 6 * 5


def test_a_link_to_itself_does_not_travel(tree):
    root = tree({"train.py": ""})
    (root / "loop").symlink_to("loop")
    assert paths(root) == ["train.py"]
    with pytest.raises(ValueError, match="loop does not exist"):
        read_project("loop", root)


def test_a_project_of_too_many_levels_is_refused_unless_they_are_ignored(tree):
    folder = root = tree({"train.py": ""})
    for _ in range(200):
        folder /= "d"
        folder.mkdir()
    (folder / "x.py").touch()
    with pytest.raises(ValueError, match=r"project has more than 100 levels of folders; name a folder"):
        read_project(root)
    with pytest.raises(ValueError, match="more than 100 levels"):
        read_project(["**/*.py"], root)
    (root / ".trainjobignore").write_text("d/\n")
    assert paths(root) == [".trainjobignore", "train.py"]


def test_a_folder_that_cannot_be_read_is_named_unless_it_is_ignored(tree):
    root = tree({"train.py": ""})
    # The paths of what is in the last folder are longer than the kernel allows; its name has 5 to 255 characters.
    folder = root / "d"
    while len(str(folder)) < 3_835:
        folder /= "d" * 250
    folder /= "e" * (4_090 - len(str(folder)))
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    os.close(os.open("module.py", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
    with pytest.raises(ValueError, match=r"code: .* cannot be read: .*; name it in \.trainjobignore"):
        read_project(root)
    (root / ".gitignore").write_text("e*/\n")
    assert paths(root) == [".gitignore", "train.py"]


def test_a_list_has_folders_files_and_patterns_relative_to_the_working_directory(tree, monkeypatch):
    root = tree({"src/pkg/a.py": "", "configs/a.yaml": "", "configs/b.txt": "", "other.py": "", ".gitignore": "b.*\n"})
    monkeypatch.chdir(root)
    assert paths(["src", "configs/*.yaml"]) == ["configs/a.yaml", "src/pkg/a.py"]
    assert paths(["configs/*", "configs/b.txt"]) == ["configs/a.yaml", "configs/b.txt"]
    assert paths("other.py") == ["other.py"]


def test_a_pattern_that_names_a_folder_takes_what_is_in_it_except_what_is_ignored(tree):
    root = tree(
        {
            ".gitignore": "*.log\nbuild/\n",
            "src/a.py": "",
            "src/inner/b.py": "",
            "src/a.log": "",
            "src/build/c.py": "",
            "build/d.py": "",
            "other/e.py": "",
        }
    )
    assert paths(["s*"], root) == ["src/a.py", "src/inner/b.py"]
    assert paths(["*/inner"], root) == ["src/inner/b.py"]
    assert paths(["src/inner", "o*"], root) == ["other/e.py", "src/inner/b.py"]
    for pattern in ("b*", "*/d.py", "build/*"):
        with pytest.raises(ValueError, match=r"matches no file of .* that travels"):
            read_project([pattern], root)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("missing", r"missing does not exist; give the folder"),
        (["missing"], r"missing does not exist; give a path"),
        (["*.nothing"], r"\*\.nothing matches no file"),
        (["../x"], r"must be a path below"),
        (["/etc"], r"must be a path below"),
        ("empty", r"no file of .* travels"),
        ("s3://bucket/code", r"must be a folder of this machine"),
        ("git+https://example.com/x@main", r"a branch or tag names other files tomorrow"),
        ("git+ext://example.com/x@" + "0" * 40, r"code must be git\+https"),
        ("git+https://example.com/x@" + "0" * 40 + "#subdirectory=../y", r"code must be git\+https"),
        ("git+https://me:token@example.com/x@" + "0" * 40, r"contains a user or password"),
        (["git+https://example.com/x@" + "0" * 40], r"must be a folder of this machine"),
        ("{{ params.code }}", r"cannot be a template"),
        ([], r"code must be a folder"),
        (3, r"code must be a folder"),
        ("\ud800", r"code must be a folder"),
        (["a.py", "a\0b"], r"code must be a folder"),
    ],
)
def test_what_is_no_code_is_refused_in_one_line(tree, code, message):
    root = tree({"a.py": ""})
    (root / "empty").mkdir()
    with pytest.raises(ValueError, match=message) as refused:
        read_project(code, root)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("encoding", "advice"), [("utf-8", "rename the file"), ("ascii", "set PYTHONUTF8=1, or rename it")]
)
def test_a_file_whose_name_is_not_utf_8_is_refused_with_what_helps(tree, monkeypatch, encoding, advice):
    root = tree({"a.py": "", os.fsdecode(b"b\xe4nke.csv"): ""})
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    with pytest.raises(ValueError, match=rf"^code: the name 'b\\udce4nke.csv' is not UTF-8; {advice}$"):
        read_project(".", root)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with two commits; its URL, and their ids."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    folder = tmp_path / "upstream"
    folder.mkdir()

    def git(*arguments):
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        return subprocess.run(
            ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
        ).stdout

    git("init", "--quiet")
    commits = []
    for text in ("def main():\n    return 1\n", "def main():\n    return 2\n"):
        (folder / "pkg").mkdir(exist_ok=True)
        (folder / "pkg/train.py").write_text(text)
        git("add", "-A")
        git("commit", "--quiet", "-m", "x")
        commits.append(git("rev-parse", "HEAD").strip())
    return folder, commits


def test_a_commit_travels_and_is_fetched_once(repository):
    folder, commits = repository
    uris = [f"git+{folder.as_uri()}@{commit}" for commit in commits]
    found = [read_project(uri).files["pkg/train.py"] for uri in uris]
    assert found == [b"def main():\n    return 1\n", b"def main():\n    return 2\n"]
    assert paths(f"{uris[0]}#subdirectory=pkg") == ["train.py"]
    folder.rename(folder.with_name("gone"))
    assert paths(uris[0]) == ["pkg/train.py"]


def test_a_commit_that_cannot_be_fetched_is_refused_and_leaves_nothing(repository, tmp_path):
    folder, commits = repository
    with pytest.raises(ValueError, match=r"code: commit 000000000000 of .* cannot be fetched: "):
        read_project(f"git+{folder.as_uri()}@{'0' * 40}")
    assert [path for path in (tmp_path / "cache").rglob("*") if not path.is_dir()] == []
    with pytest.raises(ValueError, match="has no folder missing"):
        read_project(f"git+{folder.as_uri()}@{commits[0]}#subdirectory=missing")


# ---- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [".env", ".env.local", "deploy/key.pem", "id_rsa", ".aws/config", ".netrc", "credentials.json", "secrets.toml"],
)
def test_a_file_with_the_name_of_a_secret_is_refused_unless_it_is_written_out(tree, name):
    root = tree({"train.py": "", name: "x"})
    for code in (".", ["**/*"]):
        with pytest.raises(ValueError, match=rf"{name} has the name of a secret.*\.trainjobignore"):
            read_project(code, root)
    assert name in paths([".", name], root)


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
def test_a_private_key_is_refused_under_any_name_unless_it_is_written_out(tree, kind):
    root = tree({"train.py": "", "server.txt": f" \n-----BEGIN {kind}PRIVATE KEY-----\nabc"})
    for code in (".", ["*.txt"]):
        with pytest.raises(
            ValueError, match=r"server\.txt is a private key.* write it out: code=\['.', 'server.txt'\]"
        ):
            read_project(code, root)
    assert paths([".", "server.txt"], root) == ["server.txt", "train.py"]


def test_a_text_that_shows_a_private_key_travels(tree):
    files = {"guide.txt": "A key begins with -----BEGIN PRIVATE KEY-----", "key.txt": "-----BEGIN PUBLIC KEY-----"}
    assert paths(tree(files)) == sorted(files)


def test_a_link_to_a_secret_is_refused_under_any_name(tree):
    root = tree({"train.py": "", ".gitignore": ".env\n", ".env": "TOKEN=1"})
    (root / "settings").symlink_to(".env")
    with pytest.raises(ValueError, match="settings has the name of a secret"):
        read_project(root)


def test_an_ignored_secret_is_left_out_and_samples_modules_and_public_keys_travel(tree):
    files = {".gitignore": ".env\n", "secrets.py": "", ".env.example": "", "id_rsa.pub": ""}
    root = tree({**files, ".env": "TOKEN=1"})
    assert paths(root) == sorted(files)


# ---- packing -----------------------------------------------------------------------------------------------------


def test_equal_trees_give_equal_bytes_whatever_their_times_permissions_and_place(tmp_path):
    packed = []
    for place, stamp, mode, names in (("a", 1, 0o644, "xy"), ("b/c", 10**9, 0o600, "yx")):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.py").write_text(f"{name} = 1\n")
            (folder / f"{name}.py").chmod(mode)
            os.utime(folder / f"{name}.py", (stamp, stamp))
        packed.append(read_project(folder).pack())
    assert packed[0] == packed[1]


def test_names_contents_and_executable_bits_change_the_digest(tree):
    root = tree({"a.py": "1"})
    digests = {read_project(root).pack()["digest"]}
    (root / "a.py").chmod(0o755)
    digests.add(read_project(root).pack()["digest"])
    (root / "a.py").write_text("2")
    digests.add(read_project(root).pack()["digest"])
    (root / "a.py").rename(root / "b.py")
    digests.add(read_project(root).pack()["digest"])
    assert len(digests) == 4


def test_a_huge_file_is_refused_before_it_is_read(tree):
    root = tree({"train.py": ""})
    with (root / "model.bin").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(ValueError, match=r"have 1\.0 TB .*model\.bin \(1\.0 TB\).*at most 64 MB travel"):
        read_project(root)


def test_files_of_exactly_the_limit_travel_and_one_byte_more_is_refused(tree, monkeypatch):
    monkeypatch.setattr(packed_project, "_MAX_BYTES", 20)
    root = tree({"a.py": "x" * 9, "b.py": "y" * 11})
    assert paths(root) == ["a.py", "b.py"]
    (root / "a.py").write_text("x" * 10)
    message = r"2 files have 21 bytes \(the largest are b.py .11 bytes., a.py .10 bytes.\), and at most 20 bytes travel"
    with pytest.raises(ValueError, match=message):
        read_project(root)


def test_files_arrive_byte_for_byte_and_stay_executable(tree, tmp_path):
    files = {"a.py": "x = 'ü'\r\n", "b.bin": bytes(range(256)), "d/run.sh": "#!/bin/sh\n", "e/empty": ""}
    root = tree(files)
    (root / "d/run.sh").chmod(0o755)
    packed = read_project(root).pack()
    folder = tmp_path / "job"
    folder.mkdir(mode=0o700)
    arrived = load_function.unpack_project(packed, str(folder))
    found = {name: (folder / arrived / name).read_bytes() for name in files}
    assert found == read_files(packed) == {name: (root / name).read_bytes() for name in files}
    modes = {name: (folder / arrived / name).stat().st_mode & 0o777 for name in files}
    assert modes == {**dict.fromkeys(files, 0o600), "d/run.sh": 0o700}
    assert [each.name for each in folder.iterdir()] == [Path(arrived).name]


def test_processes_that_unpack_at_once_share_one_folder(tree, tmp_path):
    packed = read_project(tree({f"m{number}.py": "x" * number for number in range(200)})).pack()
    (tmp_path / "job").mkdir(mode=0o700)
    program = (
        "import json, sys; from trainer_core.node import project; "
        "print(project.unpack(json.loads(sys.stdin.readline()), sys.argv[1]))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "job")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in started:
        process.stdin.write(json.dumps(packed) + "\n")
        process.stdin.flush()
    folders = {process.communicate(timeout=300)[0].strip() for process in started}
    assert len(folders) == 1
    assert len(list((tmp_path / "job").iterdir())) == 1
    assert len(list((tmp_path / "job").glob("*/m*.py"))) == 200


def test_damaged_files_and_paths_that_lead_out_are_refused_where_they_arrive(tree, tmp_path):
    packed = read_project(tree({"a.py": "1"})).pack()
    for damaged in ({**packed, "digest": "0" * 64}, {**packed, "archive": "AAAA"}, {**packed, "archive": "A"}):
        with pytest.raises(node_project.ProjectError, match="do not match their digest"):
            load_function.unpack_project(damaged, str(tmp_path))
    for name in ("../out", "/out", "a//b"):
        content = {"files": {name: "x"}, "executable": []}
        with pytest.raises(node_project.ProjectError, match="leads out of their folder"):
            node_project._write(content, str(tmp_path / "job"))


# ---- the request -------------------------------------------------------------------------------------------------


def test_the_fingerprint_contains_the_digest_and_not_the_compressed_bytes(tree):
    trainer = CustomTrainer("train:main", code=tree({"train.py": "def main(): pass\n"}))
    request = build_request(backend=DebugBackend, trainer=trainer)
    recorded = type(request).from_json(request.to_record_json())
    assert recorded.work.trainer.code.project.archive == ""
    assert recorded.fingerprint() == request.fingerprint()
    tree({"train.py": "def main(): return 1\n"})
    changed = build_request(backend=DebugBackend, trainer=trainer)
    assert changed.fingerprint() != request.fingerprint()
    assert "trainer.code.project.digest" in changed.list_differences(request)


def test_the_largest_project_fits_the_arguments_of_a_container(tree):
    root = tree({"train.py": "def main(): pass\n", "noise.bin": noise(660_000)})
    code = Code(**serializer.package("train:main", project=read_project(root)))
    assert 850_000 < len(code.project.archive) < 900_000
    argv = argv_payload.render_argv(code, ["scikit-learn"], ["https://example.com/simple"])
    assert sum(map(len, argv)) < 1_000_000


def test_a_state_folder_of_the_local_backend_does_not_travel(tree):
    root = tree({"train.py": "", "home/notes.txt": ""})
    StateFolder(root / "home").create_folders()

    assert paths(root) == ["train.py"]
    with pytest.raises(
        ValueError, match=r"home is the state folder of the local backend; use another folder for --home"
    ):
        paths(root / "home")
