"""Commit messages have the form that CONTRIBUTING.md tells, and only commits that are not yet in the main branch count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import commit_messages
import pytest
from commit_messages import TYPES, problem
from workspace import ROOT


class Repository:
    """A repository with one commit, ``main``, whose message has another form."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        self.commit("An old message")

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ("git", *who, "-c", "core.hooksPath=/dev/null", *arguments),
            cwd=self.folder, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "--short", "HEAD")

    def checked(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> tuple[int, str]:
        """Exit code and output of the check."""
        monkeypatch.setattr(commit_messages, "ROOT", self.folder)
        code = commit_messages.main([])
        return code, "".join(capsys.readouterr())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Repository(tmp_path / "repository")


@pytest.mark.parametrize(
    "message",
    [
        *(f"{each}: say what it does" for each in TYPES),
        "refactor(core)!: rename a capability",
        "fix(dataflow): a RaaS that left holds no lease\n\nThe reason.",
        "test(engine-host): RaaS and \"quotes\": also a colon",
        "build(policy_tools/x.y): one\n",
    ],
)  # fmt: skip
def test_a_message_of_the_form_passes(message: str) -> None:
    assert problem(message) == ""


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Say what it does",
        "style: another type",
        "Fix: a capital letter",
        "fix say what",
        "fix:no space",
        "fix: ",
        "fix:  two spaces",
        "fix(): no scope",
        "fix(Data Flow): a scope of two words",
        "fix: a full stop.",
        "fix: one\ntwo",
    ],
)
def test_the_reply_to_another_message_says_what_is_expected(message: str) -> None:
    assert problem(message).startswith("expected ")


def test_only_commits_that_are_not_in_the_main_branch_are_checked(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repository.git("clone", "-q", ".", str(tmp_path / "clone"))
    clone = object.__new__(Repository)
    clone.folder = tmp_path / "clone"
    assert clone.checked(monkeypatch, capsys) == (0, "0 commits since the main branch\n")
    clone.commit("fix: one")
    assert clone.checked(monkeypatch, capsys) == (0, "1 commits since the main branch\n")
    wrong = clone.commit("A wrong one\n\nWith a body.")
    clone.commit("fix: three")
    code, told = clone.checked(monkeypatch, capsys)
    assert code == 1 and f"{wrong}: 'A wrong one': expected 'type(scope): what'" in told
    assert told.count("expected") == 1 and "CONTRIBUTING.md" in told


def test_another_remote_has_the_main_branch_of_a_fork(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.commit("In upstream, not in the fork")
    repository.git("update-ref", "refs/remotes/origin/main", "HEAD~1")
    assert repository.checked(monkeypatch, capsys)[0] == 1
    repository.git("update-ref", "refs/remotes/upstream/main", "HEAD")
    assert repository.checked(monkeypatch, capsys)[0] == 0


def test_a_merge_needs_no_message_of_the_form(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.git("update-ref", "refs/remotes/origin/main", "HEAD")
    repository.git("checkout", "-q", "-b", "side")
    repository.commit("fix: on the side")
    repository.git("checkout", "-q", "main")
    repository.commit("feat: on the main branch")
    repository.git("merge", "-q", "--no-ff", "-m", "Bring both together", "side")
    assert repository.checked(monkeypatch, capsys) == (0, "2 commits since the main branch\n")


def test_a_missing_main_branch_is_no_failure(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No remote, a shallow clone whose main branch has gone on, no repository."""
    nothing = (0, "0 commits since the main branch\n")
    assert repository.checked(monkeypatch, capsys) == nothing
    repository.commit("Another old one")
    repository.git("clone", "-q", "--depth", "1", repository.folder.as_uri(), str(tmp_path / "s"))
    shallow = object.__new__(Repository)
    shallow.folder = tmp_path / "s"
    repository.git("checkout", "-q", "--orphan", "elsewhere")
    unrelated = repository.commit("Unrelated, as history that was cut off looks")
    shallow.git("fetch", "-q", "--depth", "1", "origin", "elsewhere")
    assert shallow.git("rev-parse", "--short", "FETCH_HEAD") == unrelated
    shallow.git("update-ref", "refs/remotes/origin/main", "FETCH_HEAD")
    assert shallow.checked(monkeypatch, capsys) == nothing
    shallow.folder = tmp_path / "plain"
    shallow.folder.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert shallow.checked(monkeypatch, capsys) == nothing


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("fix: one\n\nThe reason.\n# Please enter the commit message\n", 0),
        ("fix: one\n# ------------------------ >8 ------------------------\ndiff\n", 0),
        ("# a comment above\nfix: one\n", 0),
        ("fixup! fix: one\n", 0),
        ("Merge branch 'side'\n", 0),
        ("A wrong one\n", 1),
    ],
)
def test_the_hook_reads_what_git_will_keep(tmp_path: Path, message: str, code: int) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    assert commit_messages.main([str(file)]) == code


def test_the_rule_is_written_where_the_check_says() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Commits\n")[2]
    listed = [
        line.split("`")[1]
        for line in section.partition("\n## ")[0].splitlines()
        if line.startswith("| `")
    ]
    assert tuple(listed) == TYPES


def test_make_check_checks_the_commits() -> None:
    text = (ROOT / "scripts" / "dev.py").read_text(encoding="utf-8")
    assert (
        '"scripts" / "commit_messages.py"' in text.partition("def check(")[2].partition("\ndef ")[0]
    )


def test_the_script_needs_no_environment() -> None:
    """The hook runs under whichever Python the user has."""
    script = str(ROOT / "scripts" / "commit_messages.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", script, "--"], capture_output=True, text=True, timeout=30
    )
    assert "FileNotFoundError" in done.stderr
