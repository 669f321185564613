"""The same pages in the dataflow of a run, for those who reach that and not the folder."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter

from astraflow_contrib_pages.routes import PageRoutes
from astraflow_contrib_pages.runs_folder import RunsFolder
from astraflow_core.types import RunInfo

_directories: list[Path] = []
"""Of the run that this process is of; the hook that adds routes does not say it."""


def remember(run: RunInfo) -> None:
    """Take note of the run, before routes are asked for."""
    _directories[:] = [run.directory]


def routers(service: str) -> list[APIRouter]:
    """The pages about the run of this process, if it is the dataflow."""
    if service != "dataflow" or not _directories:
        return []
    (directory,) = _directories
    return [PageRoutes(RunsFolder(directory.parent, directory.name)).router]
