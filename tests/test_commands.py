"""Every command, every hook and every variable of the environment has its place in the documents, and every
command and hook a test."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from pages.workspace_catalog import catalog
from workspace import ROOT, all_sources, tree_of

from astraflow_core.hookspecs import Lifecycle, Registration
from astraflow_runtime.cli import parser
from astraflow_runtime.cli.helping import every_command

PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
COMMANDS = dict(every_command(parser(catalog().plugins)))
COMMAND_OF = {tuple(path.split()): path for path in COMMANDS}
TESTS = sorted(
    file
    for folder in (
        "core",
        "libs",
        "runtime",
        "testing",
        "plugins",
        "contrib",
        "tests",
        "examples",
        "bench",
    )
    for file in (ROOT / folder).rglob("*.py")
    if "tests" in file.parts or file.name.startswith("test_") or file.name == "fake_plugins.py"
)
CALLERS = {"main", "astraflow", "start", "execute", "Popen", "run", "findings", "told", "append"}
"""Functions of tests that are given a command line."""
INTERNAL = {
    "ASTRAFLOW_EPISODE",  # marks the processes of an agent and of an MCP server
    "ASTRAFLOW_API", "ASTRAFLOW_ENVIRONMENT", "ASTRAFLOW_INDEX", "ASTRAFLOW_LAUNCHER", "ASTRAFLOW_HOST_ADDRESS", "ASTRAFLOW_ORIGIN", "ASTRAFLOW_ROOM", "ASTRAFLOW_START",
    "ASTRAFLOW_SUITE", "ASTRAFLOW_SUITE_OWN", "ASTRAFLOW_TEST_MARKER", "ASTRAFLOW_TEST_ROOM", "ASTRAFLOW_POD_NAME", "ASTRAFLOW_POD_UID",
}  # fmt: skip
"""Attributes of manifests, and what the core tells its own children."""


def test_every_command_has_its_section_and_every_argument_its_meaning() -> None:
    headings = re.findall(r"^## `astraflow (.+)`$", PAGE, re.MULTILINE)
    assert headings == list(COMMANDS)
    silent = [
        f"{path} {action.dest}"
        for path, each in COMMANDS.items()
        for action in each._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    ]
    assert not silent, f"no help for: {silent}"
    for path, each in COMMANDS.items():
        section = PAGE.partition(f"## `astraflow {path}`\n")[2].partition("\n## ")[0]
        for action in each._actions:
            for option in set(action.option_strings) - {"-h", "--help"}:
                assert f"`{option}" in section, f"{path} {option}"


def lines_given(tree: ast.AST) -> Iterator[list[str]]:
    """Command lines in a test: words of lists and calls that end up as one. A test that calls
    ``main(["env", *words])`` gives these words elsewhere: any list or call may hold them."""
    lines = list(whole_lines(tree))
    yield from lines
    heads = {line[0] for line in lines if line[1:2] == ["*"] and " ".join(line[:1]) in COMMANDS}
    for node in ast.walk(tree) if heads else ():
        if isinstance(node, ast.Call | ast.List | ast.Tuple):
            rest = words(node.args if isinstance(node, ast.Call) else node.elts)
            yield from ([head, *rest] for head in heads)


def whole_lines(tree: ast.AST) -> Iterator[list[str]]:
    """Command lines that stand in one place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if getattr(node.func, "attr", getattr(node.func, "id", "")) in CALLERS:
                yield words(node.args)
                yield from (words(a.elts) for a in node.args if isinstance(a, ast.List | ast.Tuple))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            yield words(node.value.elts)


def words(nodes: list[ast.expr]) -> list[str]:
    """What stands there as text; ``"*"`` for anything else."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple):
            found += words(node.value.elts)
        else:
            text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            found.append(ast.literal_eval(node) if text else "*")
    return found


def begun(line: list[str]) -> set[str]:
    """The commands that a line is, after ``python -m astraflow_runtime`` or a path to ``astraflow``."""
    starts = {0, *(i + 1 for i, word in enumerate(line) if word in ("astraflow_runtime", "*"))}
    given = {tuple(line[start : start + count]) for start in starts for count in (1, 2, 3)}
    return {COMMAND_OF[words] for words in given & COMMAND_OF.keys()}


def untested(commands: Iterable[str]) -> set[str]:
    """Those of the commands that no test gives to the command line; only files with the words of one of them are parsed."""
    left = {path: {f'"{word}"' for word in path.split()} for path in commands}
    for file in TESTS:
        text = file.read_text(encoding="utf-8")
        if any(all(word in text for word in words) for words in left.values()):
            for line in lines_given(tree_of(file)):
                for command in begun(line):
                    left.pop(command, None)
    return set(left)


def test_every_command_has_a_test() -> None:
    found = untested(COMMANDS)
    assert not found, f"no test calls: {sorted(found)}"


def test_a_command_line_is_recognised_where_tests_write_one() -> None:
    source = (
        "main(['plugins', 'why', name])\n"
        "user.astraflow('run', path)\n"
        "execute(*(astraflow, 'report', str(path)))\n"
        "command = [sys.executable, '-m', 'astraflow_runtime', 'trainer', str(file)]\n"
        "places = ('raas', 'doctor')\n"
        "print('dataflow')\n"
        "main(['config', *words])\n"
        "told('show', 'run.toml')\n"
    )
    found = {command for line in lines_given(ast.parse(source)) for command in begun(line)}
    assert found == {
        *("plugins", "plugins why", "run", "report", "trainer"),
        *("config", "config show"),
    }


@cache
def implemented_hooks() -> set[str]:
    """The functions of all tests whose names are those of hooks."""
    pattern = re.compile(r"^\s*def (astraflow_\w+)\(", re.MULTILINE)
    return {name for f in TESTS for name in pattern.findall(f.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    "hook", [name for spec in (Registration, Lifecycle) for name in vars(spec) if name[0] != "_"]
)
def test_every_hook_has_a_test_that_implements_it(hook: str) -> None:
    assert hook in implemented_hooks(), f"no test implements {hook}"


def test_every_variable_of_the_environment_is_described() -> None:
    read = {
        name
        for file in all_sources()
        for name in re.findall(r"\bASTRAFLOW_[A-Z_]+\b", Path(file).read_text(encoding="utf-8"))
    }
    described = set(re.findall(r"^\| `(ASTRAFLOW_\w+)` \|", PAGE, re.MULTILINE))
    assert described == read - INTERNAL
