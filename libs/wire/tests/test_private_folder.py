"""Private folders in a place where anybody may write, as the temporary folder is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow_wire.host.private_folder import PrivateFolder, is_held, remove_orphans

PREFIX = "astraflow-"


def a_folder(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_text("")


def a_folder_called_lock(path: Path) -> None:
    (path / "lock").mkdir(parents=True)


def a_pipe_called_lock(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "lock")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def a_folder_that_nobody_may_read(path: Path) -> None:
    path.mkdir(mode=0o000)


@pytest.mark.parametrize(
    "make",
    [
        a_folder,
        a_file,
        a_folder_called_lock,
        a_pipe_called_lock,
        a_link_to_nothing,
        a_link_to_itself,
        a_folder_that_nobody_may_read,
    ],
)
def test_what_others_leave_there_stops_no_one(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / f"{PREFIX}of-another")
    folder = PrivateFolder(tmp_path, PREFIX)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert is_held(folder.path)
    folder.close()


def abandoned(parent: Path) -> Path:
    """A private folder whose process is dead."""
    left = parent / f"{PREFIX}left"
    left.mkdir()
    (left / "lock").touch()
    (left / "kept").touch()
    return left


def test_only_folders_of_this_user_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = abandoned(tmp_path)
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
        remove_orphans(tmp_path, PREFIX)
        assert (left / "kept").exists()
    remove_orphans(tmp_path, PREFIX)
    assert not left.exists()


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    real = abandoned(elsewhere)
    (tmp_path / f"{PREFIX}link").symlink_to(real)
    remove_orphans(tmp_path, PREFIX)
    assert (real / "kept").exists()


def test_no_one_can_take_its_name_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path.rename

    def taken(path: Path, target: Path) -> Path:
        """Another process watches the folder, and creates the name that the next rename seems to use."""
        guess = tmp_path / path.name.removeprefix(".")
        (guess / "taken").mkdir(parents=True)
        return made(path, target)

    monkeypatch.setattr(Path, "rename", taken)
    PrivateFolder(tmp_path, PREFIX).close()
