"""docs/commands.md: every command of the command line, read from its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache

from astraflow_core.installed.discovery import DISABLE_VARIABLE
from astraflow_engine_host.sharing.messages import SHARED_ENGINES
from astraflow_runtime.cli import TRACEBACK, parser
from astraflow_runtime.cli.helping import READ_ON, every_command
from astraflow_runtime.cli.running.secrets import DATAFLOW, TOKEN
from astraflow_runtime.raas.granted_places import PLACES
from astraflow_wire.http import tls
from pages.markdown import GENERATED, code, page, table
from pages.workspace_catalog import catalog

_VARIABLES = {
    TOKEN: "the run's token, for the commands of one role and for those that inspect a run",
    DATAFLOW: "URL of the dataflow, for the same",
    DISABLE_VARIABLE: "plugins that are not to be imported, by name, with commas between",
    "ASTRAFLOW_BANDWIDTH_MB_S": "megabytes per second between trainer and RaaS, if known: the transport `auto` "
    "chooses by it",
    "ASTRAFLOW_CACHE": "folder for what can be fetched or made again: models, environments",
    "ASTRAFLOW_CURVES": "`none`: runs draw no `curves.png`; `astraflow report` draws it whenever it is asked",
    "ASTRAFLOW_DRY_CALL_S": "seconds that the dry call of workflow and reward may take before a run starts (10); `none` leaves it out",
    "ASTRAFLOW_ENVIRONMENTS": "folder for environments alone; `scripts/dev.py` sets it for tests, since an "
    "environment holds the sources that made it, and two checkouts would take it from each other",
    "ASTRAFLOW_IMPORTS": "`own`: each process of a local run is started and imports by itself; otherwise those of one interpreter are "
    "forked from one that has imported what they need",
    "ASTRAFLOW_LOG_LEVEL": "what the processes of a run log: `debug`, `info`, `warning` or `error`",
    SHARED_ENGINES: "where a RaaS in a pool finds an engine that it shares with other runs, with its token",
    PLACES: "named pipe by which a host of a pool tells a RaaS how many episodes it may run",
    tls.AUTHORITY: "certificate of the run's authority: a client of a run with `[tls]` needs it",
    tls.CERTIFICATE: "certificate of this host, for a service, or a client where the run asks for certificates of clients",
    tls.PRIVATE_KEY: "its private key",
    tls.CLIENT_CERTIFICATES: "`1`: services ask their clients for certificates of the authority",
    TRACEBACK: "`1` shows the traceback of every error",
}


@cache
def _parser() -> argparse.ArgumentParser:
    return parser(catalog().plugins)


def commands() -> str:
    """The page of commands."""
    return page(
        "# Commands",
        GENERATED,
        """
`astraflow COMMAND …`, or `python -m astraflow_runtime COMMAND …` with an interpreter of your choice. `--help`
after any of them prints the description below; `astraflow --version` gives the version of the core.

Some commands come with a distribution of their own ([which](distributions.md#the-commands)), and `astraflow --help` lists those that
are installed. A plugin of yours can bring [a command](write-a-plugin.md#a-command) too. If several plugins have one of the same name,
the name means that of this repository, and `astraflow PLUGIN/NAME` another.

Commands about a run take `--run RUN`: the path of its directory, or its name in `runs/` of the working directory.
Without it they take the newest run there, and those that need a running run the newest that has not ended.

A *policy* is a model that a run trains, a table `[policies.NAME]`. A *data policy* is a component that decides which
prompts and groups are used, an entry of `[prompts] data` or `[policies.NAME] data`; `astraflow data-policy` changes
those. `astraflow config explain` shows what a key means, `astraflow trace` what became of a prompt or a group.
""",
        *(part for path, each in every_command(_parser()) for part in _command(path, each)),
        "## Exit codes",
        """
| code | meaning |
|---|---|
| 0 | done; also a run that was stopped before its last step, by a command or for want of rows: `state` in `summary.json` is then `stopped` |
| 1 | a run that started has failed |
| 2 | something that you can fix: the message names what is wrong, what was expected and what to do |
| 3 | `astraflow raas` alone: the dataflow does not take it in, as when another RaaS has its name; do not restart it |
| 130 | interrupted by Ctrl-C |
| 143 | interrupted by SIGTERM, or by SIGHUP: the terminal or the connection of ssh was closed. `nohup` keeps a run going |

Commands that print for people print JSON with `--json`.
""",
        "## Environment",
        table(("variable", ""), [(code(name), meaning) for name, meaning in _VARIABLES.items()]),
    )


def _command(path: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## `astraflow {path}`"
    yield " ".join(filter(None, (_summary(path), parser.description)))
    plain = [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]
    below = [each for each in plain if isinstance(each, argparse._SubParsersAction)]
    own = [each for each in plain if each not in below]
    word = "" if not below else " COMMAND …" if below[0].required else " [COMMAND …]"
    yield f"```text\nastraflow {path}{''.join(f' {_used(a)}' for a in _ordered(own))}{word}\n```"
    if own:
        yield table(("", ""), [(code(_named(each)), _meaning(each)) for each in _ordered(own)])
    for group in parser._mutually_exclusive_groups:
        names = " and ".join(code(_named(each).split()[0]) for each in group._group_actions)
        yield f"{'Exactly' if group.required else 'At most'} one of {names}."
    if parser.epilog:
        examples, _, read_on = parser.epilog.partition(f"\n\n{READ_ON}")
        lines = [line.strip() for line in examples.splitlines()[1:]]
        yield "\n".join(["```bash", *lines, "```"])
        yield f"More: [{read_on}]({read_on})"


def _summary(path: str) -> str:
    """The line that ``--help`` of the command above shows."""
    above, _, last = path.rpartition(" ")
    holders = [(_parser(), path)]  # a command of two words stands beside those of one
    holders += [(p, last) for name, p in every_command(_parser()) if name == above]
    for holder, name in holders:
        for action in holder._actions:
            shown_here = getattr(action, "_choices_actions", [])
            for shown in shown_here:
                if shown.dest == name and shown.help:
                    return f"{shown.help[:1].upper()}{shown.help[1:]}."
    return ""


def _ordered(actions: list[argparse.Action]) -> list[argparse.Action]:
    """What has no dashes first, then what must be given."""
    return sorted(actions, key=lambda a: (bool(a.option_strings), not a.required))


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices:
        return "|".join(map(str, action.choices))
    return action.dest.upper()


def _named(action: argparse.Action) -> str:
    if not action.option_strings:
        return _metavar(action)
    takes = "" if action.nargs == 0 else f" {_metavar(action)}"
    takes = f" [{_metavar(action)}]" if action.nargs == "?" else takes
    return f"{action.option_strings[-1]}{takes}"


def _used(action: argparse.Action) -> str:
    optional = not action.required if action.option_strings else action.nargs in ("?", "*")
    more = " …" if action.nargs in ("*", "+", argparse.REMAINDER) else ""
    if isinstance(action, argparse._AppendAction):
        more = " …"
    return f"[{_named(action)}]{more}" if optional else f"{_named(action)}{more}"


def _meaning(action: argparse.Action) -> str:
    if not action.help:
        return ""
    return (action.help % {**vars(action), "prog": "astraflow"}).strip()
