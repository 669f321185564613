"""Conformance of a command: cheap to list, with a description of every option."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import PluginError
from astraflow_runtime.cli import main
from astraflow_runtime.cli.commands import parser_of
from astraflow_runtime.cli.helping import every_command
from astraflow_runtime.cli.provided import ProvidedCommand, select_command
from astraflow_testing.conformance._processes.interpreter import InterpreterFailed, ask
from astraflow_testing.conformance.manifest import BACKENDS
from astraflow_testing.conformance.subject import Conformance, violated

DEADLINE_S = 50.0
_PROGRAM = """
import contextlib, io, sys
from astraflow_runtime.cli import main

def answer(command):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = main([*command.split(), "--help"])
    return code, shown.getvalue(), sorted(sys.modules)
"""


class CommandConformance(Conformance):
    """Requirements of every command.

    Required fixture ``command``: its name, as its manifest declares it::

        class TestMine(CommandConformance):
            @pytest.fixture
            def command(self) -> str:
                return "mine"
    """

    @pytest.fixture
    def command(self) -> str:
        """Required: the name of the command."""
        pytest.fail(
            "define the fixture `command`: return the name that the manifest declares, for example 'mine'"
        )

    @pytest.fixture
    def provided(self, command: str) -> ProvidedCommand:
        """The command as ``astraflow`` finds it."""
        try:
            return select_command(Catalog.discover().plugins, command)
        except PluginError as error:
            violated("component", str(error), "a command that an installed plugin declares")

    @pytest.fixture
    def parser(self, provided: ProvidedCommand) -> argparse.ArgumentParser:
        """Its parser, with the arguments that it declares."""
        try:
            return parser_of(provided)
        except PluginError as error:
            violated("component", str(error), "a target that takes an argparse.ArgumentParser")

    def test_every_subcommand_names_its_function(
        self, command: str, parser: argparse.ArgumentParser
    ) -> None:
        """Each command line that can be parsed leads to a function that gets the arguments."""
        for path, each in _leaves(command, parser):
            parents = [
                p
                for name, p in _with_subcommands(command, parser)
                if f"{path} ".startswith(f"{name} ")
            ]
            called = [p.get_default("command") for p in (each, *parents)]
            if not any(callable(one) for one in called):
                violated(
                    "component",
                    f"`astraflow {path}` names no function",
                    "parser.set_defaults(command=run), where run(arguments) returns the exit code",
                )

    def test_every_argument_is_described(
        self, command: str, parser: argparse.ArgumentParser
    ) -> None:
        """``--help`` describes each argument and each subcommand."""
        for path, each in _with_subcommands(command, parser):
            for action in each._actions:
                if isinstance(action, argparse._SubParsersAction):
                    described = {shown.dest for shown in action._choices_actions if shown.help}
                    silent = sorted(action.choices.keys() - described)
                else:
                    silent = [] if action.help else [action.dest]
                if silent:
                    violated(
                        "component",
                        f"`astraflow {path} --help` says nothing of {', '.join(silent)}",
                        "help=… for every argument and part",
                    )

    def test_help_is_printed_and_imports_no_backend(
        self, command: str, provided: ProvidedCommand
    ) -> None:
        """``--help`` exits with 0 in a new interpreter and imports no backend."""
        code, output, modules = _helped(command)
        if code != 0 or not output.startswith("usage: astraflow"):
            violated("component", f"`astraflow {command} --help` ended with {code}: {output}", "0")
        heavy = sorted({name.partition(".")[0] for name in modules} & BACKENDS)
        if heavy:
            violated(
                "component",
                f"`astraflow {command} --help` imported {', '.join(heavy)}",
                "a module that imports its dependencies when the command runs",
            )

    def test_an_unknown_option_is_a_usage_error(
        self, command: str, provided: ProvidedCommand, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A misspelt option exits with code 2, and nothing is done."""
        code = main([*command.split(), "--no-such-option-of-any-command"])
        out, err = capsys.readouterr()
        if code != 2 or out or not err:
            violated(
                "component",
                f"`astraflow {command} --no-such-option-of-any-command` ended with {code} and printed {out!r}",
                "exit code 2 and a message on the error stream",
            )


def _with_subcommands(
    command: str, parser: argparse.ArgumentParser
) -> list[tuple[str, argparse.ArgumentParser]]:
    """The command and all its subcommands, by their full names."""
    parts = [(f"{command} {path}", each) for path, each in every_command(parser)]
    return [(command, parser), *parts]


def _leaves(
    command: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The subcommands that can be called; the others require a further subcommand."""
    for path, each in _with_subcommands(command, parser):
        below = [a for a in each._actions if isinstance(a, argparse._SubParsersAction)]
        if not any(action.required for action in below):
            yield path, each


def _helped(command: str) -> tuple[int, str, list[str]]:
    """``--help`` in a new interpreter with this one's ``sys.path``: exit code, output, imported modules."""
    try:
        code, output, modules = ask(_PROGRAM, command, DEADLINE_S)
    except InterpreterFailed as error:
        return 1, str(error), []
    return code, output.strip(), modules
