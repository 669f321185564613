"""The manifest of the plugin ``runtime``: the default components of a run."""

from __future__ import annotations

from astraflow_core.component import API_VERSION, Command, Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = API_VERSION
ASTRAFLOW_INDEX = "astraflow_runtime.published.index:INDEX"
"""Component → distribution, for errors about missing plugins."""

_COMMANDS = {
    "start a run": (
        ("run", "astraflow_runtime.cli.run:add_arguments", "start and supervise the processes of a run"),
        ("config", "astraflow_runtime.cli.config:add_arguments", "show and explain the keys of a run's TOML file"),
        ("plugins", "astraflow_runtime.cli.installation.plugins:add_arguments", "list plugins, their components and commands"),
        ("env", "astraflow_runtime.cli.installation.environments:add_arguments", "create separate environments for backends"),
        ("certs", "astraflow_runtime.cli.certs:add_arguments", "make certificates for encrypted links between the processes of runs"),
    ),
    "inspect a run": (
        ("status", "astraflow_runtime.cli.running.status:add_status", "show the state, policies, tasks and RaaS of a running run"),
        ("top", "astraflow_runtime.cli.running.top:add_arguments", "show the live view of a running run, in another terminal"),
        ("waits", "astraflow_runtime.cli.running.status:add_waits", "show which process waits for which in a running run, since when and until when"),
        ("balance", "astraflow_runtime.cli.running.balance:add_arguments", "show whether a running run has too few or too many RaaS, with its tasks and rows"),
        ("trace", "astraflow_runtime.cli.trace:add_arguments", "show what happened to a prompt or a group of a run"),
        ("report", "astraflow_runtime.cli.report:add_arguments", "summarise a finished run"),
    ),
    "change a running run": (
        ("data-policy", "astraflow_runtime.cli.running.data_policy:add_arguments", "change a data policy of a running run"),
        ("raas add", "astraflow_runtime.cli.running.pool:add_more", "request more RaaS from the launcher of a running run"),
        ("raas drain", "astraflow_runtime.cli.running.pool:add_drain", "let RaaS of a running run finish their tasks and leave"),
        ("token", "astraflow_runtime.cli.running.token:add_arguments", "create a token with restricted rights for a running run"),
        ("token revoke", "astraflow_runtime.cli.running.token:add_revoke", "revoke the tokens of a process or a person"),
    ),
    "one process of a run": (
        ("dataflow", "astraflow_runtime.cli.roles:add_dataflow", "serve prompts, trajectories and batches (one process)"),
        ("raas", "astraflow_runtime.cli.roles:add_raas", "roll out tasks of a dataflow (one process)"),
        ("trainer", "astraflow_runtime.cli.roles:add_trainer", "train one policy on batches of a dataflow (one process)"),
    ),
}  # fmt: skip
"""Group → name, target and summary of each command."""


@hookimpl
def astraflow_launchers() -> list[Component]:
    """The launcher that a run uses unless it names another."""
    return [
        Component(
            name="local",
            target="astraflow_runtime.launch.local.launcher:LocalLauncher",
            config="astraflow_runtime.launch.local.config:LocalLauncherConfig",
            summary="starts the processes of a run on this host",
            capabilities=frozenset({"local"}),
        )
    ]


@hookimpl
def astraflow_commands() -> list[Command]:
    """The commands of the runtime; commands of plugins may join their groups."""
    return [
        Command(name, summary, group, target)
        for group, commands in _COMMANDS.items()
        for name, target, summary in commands
    ]
