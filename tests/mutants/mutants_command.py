"""Commands with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from astraflow_testing.conformance.command import CommandConformance

MANIFEST = """
from astraflow_core import Command, hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_commands():
    return [Command("written", "writes a file", "others", "PACKAGE.command:add_arguments")]
"""
COMMAND = """
def add_arguments(parser):
    parser.add_argument("--json", action="store_true", help="print JSON")
    parts = parser.add_subparsers(metavar="PART", required=True)
    first = parts.add_parser("first", help="the first")
    first.set_defaults(command=run)
    second = parts.add_parser("second", help="the second")
    second.add_argument("number", type=int, help="which")
    second.set_defaults(command=run)


def run(arguments):
    return 0
"""


class OfText(CommandConformance):
    """A plugin written into a folder, with ``replace`` (old, new) applied to the module of its command."""

    replace: ClassVar[tuple[str, str]] = ("", "")

    @pytest.fixture
    def command(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        package = f"written_{type(self).__name__.lower()}"
        folder = tmp_path / package
        folder.mkdir()
        assert self.replace[0] in COMMAND
        texts = {"__init__": "", "manifest": MANIFEST, "command": COMMAND.replace(*self.replace, 1)}
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text.replace("PACKAGE", package))
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[astraflow]\n{package} = {package}.manifest\n")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        yield "written"
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


class TestHealthy(OfText):
    pass


class TestNoSuchFunction(OfText):
    wrong = "its target does not exist"
    replace = ("def add_arguments", "def arguments_of")


class TestForgottenFunction(OfText):
    wrong = "one of its parts names no function to call"
    caught_by = "test_every_subcommand_names_its_function"
    replace = ("    second.set_defaults(command=run)\n", "")


class TestSilentArgument(OfText):
    wrong = "an argument of a part has no help"
    caught_by = "test_every_argument_is_described"
    replace = (', help="which"', "")


class TestSilentPart(OfText):
    wrong = "one of its parts has no help"
    caught_by = "test_every_argument_is_described"
    replace = (', help="the second"', "")


class TestHeavy(OfText):
    wrong = "imports a backend at the top of its module"
    caught_by = "test_help_is_printed_and_imports_no_backend"
    replace = ("def add_arguments", "import torch\n\n\ndef add_arguments")


class TestTakesAnything(OfText):
    wrong = "what it does not know it does anyway"
    caught_by = "test_an_unknown_option_is_a_usage_error"
    replace = (
        "def add_arguments(parser):\n",
        "def add_arguments(parser):\n    parser.error = lambda message: parser.exit(0)\n",
    )
