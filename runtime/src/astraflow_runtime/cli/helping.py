"""The text of ``--help`` other than the arguments: command groups, examples, and the documentation
page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

READ_ON = "documentation: docs/"


class _KeepsLines(argparse.HelpFormatter):
    """A help formatter that keeps the lines of a text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def teach(parser: argparse.ArgumentParser, page: str, *examples: str) -> None:
    """Append examples (each without ``astraflow``) and the page in ``docs/`` to the help of a
    command.
    """
    parser.formatter_class = _KeepsLines
    lines = ["examples:", *(f"  astraflow {example}" for example in examples)]
    parser.epilog = "\n".join([*lines, "", f"{READ_ON}{page}"])


def group_commands(
    top: argparse.ArgumentParser,
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    groups: Mapping[str, Sequence[str]],
) -> None:
    """List the commands in the help of ``top`` below the titles of ``groups``, instead of all in one."""
    listed = {action.dest: action for action in commands._choices_actions}
    for title, names in groups.items():
        top.add_argument_group(title)._group_actions.extend(listed[name] for name in names)
    for group in top._action_groups:
        if commands in group._group_actions:
            group._group_actions.remove(commands)


def every_command(
    top: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """``"plugins"``, ``"plugins why"`` … with their parsers, in the order of ``--help``. A command that only
    groups others is one too."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield " ".join((*path, name)), inner
                yield from every_command(inner, (*path, name))
