"""What ``--help`` prints for every command."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from astraflow_core.catalog import Catalog
from astraflow_runtime.cli import main, parsed, parser
from astraflow_runtime.cli.helping import READ_ON, every_command

DOCS = Path(__file__).resolve().parents[3] / "docs"
COMMANDS = dict(every_command(parser(Catalog.discover().plugins)))


def test_commands_are_listed_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.split("\n\n")
    groups = {part.partition(":\n")[0]: part for part in shown if ":\n  " in part}
    assert list(groups)[1:] == [
        "start a run",
        "inspect a run",
        "change a running run",
        "one process of a run",
        "share a pool of RaaS",
    ]
    first = {
        path
        for path in COMMANDS
        if path
        in ("raas add", "raas drain", "raas check", "token revoke", "tinker serve", "config import")
        or path.startswith(("compat ", "pool "))
    }
    first |= {path for path in COMMANDS if " " not in path}
    listed = [
        line[2:].split("  ")[0]
        for title, part in groups.items()
        if title != "options"
        for line in part.splitlines()[1:]
        if line[2:3] != " "
    ]
    assert sorted(listed) == sorted(first)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_help_has_examples_that_parse_and_a_page(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path.split(), "--help"]) == 0
    examples, _, page = capsys.readouterr().out.partition("examples:\n")[2].partition(READ_ON)
    assert (DOCS / page.strip()).is_file()
    lines = [shlex.split(line) for line in examples.strip().splitlines()]
    assert lines
    for program, *words in lines:
        assert program == "astraflow"
        assert words[: len(path.split())] == path.split()
        assert isinstance(parsed(words), argparse.Namespace)
