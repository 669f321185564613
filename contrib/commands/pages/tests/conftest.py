"""Serves folders of runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from astraflow_testing.fake_plugins import manifest, site

__all__ = ["manifest", "site"]

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from served_runs import Pages


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Pages]]:
    """Serves folders until the test ends."""
    from served_runs import serving

    with ExitStack() as stack:
        yield lambda root: stack.enter_context(serving(root))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium: one for the tests of a file, since no other test may find the loop of Playwright running."""
    from chromium import ARGUMENTS, chromium
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield program
        program.close()
