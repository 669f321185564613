"""What tests show does not depend on who runs them."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from pathlib import Path

import pytest
import workspace
from surroundings import depends_on_who_runs_them, heed_interrupts
from temporary import own_folder, remove
from tiers import out_of_time


def test_variables_that_tools_read_are_taken_from_the_tests() -> None:
    theirs = [
        "CI",
        "TERM",
        "COLUMNS",
        "NO_COLOR",
        "https_proxy",
        "NO_PROXY",
        "GIT_DIR",
        "RANK",
        "SLURM_JOB_ID",
    ]
    kept = ["PATH", "HOME", "TMPDIR", "PYTHONPATH", "PIP_INDEX_URL", "HF_HOME", "ASTRAFLOW_CACHE"]

    assert depends_on_who_runs_them([*kept, *theirs]) == theirs
    assert depends_on_who_runs_them(os.environ) == []


def test_tests_in_the_background_of_a_shell_can_be_interrupted() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        heed_interrupts()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_of_tests_has_a_temporary_folder_of_its_own_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path(tempfile.gettempdir()).name.startswith("t-")  # that of this run
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("t-held", "t-orphan", "t-other"):
        (tmp_path / name).mkdir()
    (tmp_path / "t-orphan" / "lock").touch()
    with (tmp_path / "t-held" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = own_folder()
    assert {"t-held", "t-other"} == {each.name for each in tmp_path.iterdir() if each != made}
    assert made is not None and made.parent == tmp_path and len(made.name) == 10
    assert made.stat().st_mode & 0o7777 == 0o1777
    assert Path(tempfile.mkdtemp()).parent == made
    assert own_folder() is None  # for a worker, or a pytest that a test starts
    remove(made)
    assert not made.exists() and tempfile.gettempdir() == str(tmp_path)


@pytest.mark.parametrize(
    ("markers", "until", "left_out"),
    [
        (["slow"], "99.0", True),
        (["timeout", "backend"], "99", True),
        (["slow"], "101", False),
        (["slow"], "", False),
        (["timeout"], "99", False),
    ],
)
def test_heavy_tests_end_in_time(markers: list[str], until: str, left_out: bool) -> None:
    assert out_of_time(markers, until, 100.0) == left_out


def test_a_checkout_may_belong_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (workspace.ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert workspace.ROOT / "conftest.py" in workspace.tracked_files.__wrapped__()


def test_files_without_git_may_lie_below_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / ".cache" / "build" / "checkout"
    for name in ("core/a.py", "runs/b.py", ".venv/c.py"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    monkeypatch.setattr(workspace, "ROOT", root)
    assert workspace.tracked_files.__wrapped__() == (root / "core" / "a.py",)
