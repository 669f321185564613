"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Command, Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
_GROUP = "share a pool of RaaS"


@hookimpl
def astraflow_commands() -> list[Command]:
    """The commands ``pool …``."""
    place = "astraflow_contrib_pool.commands"
    return [
        Command("pool start", "serve a pool, which shares its RaaS among runs", _GROUP, f"{place}:add_start"),
        Command("pool join", "lend this host to a pool until it leaves", _GROUP, f"{place}:add_join"),
        Command("pool ls", "list hosts and runs of a pool, with shares, tokens and cost", _GROUP, f"{place}:add_ls"),
        Command("pool drain", "let a host finish its tasks and leave a pool", _GROUP, f"{place}:add_drain"),
        Command("pool token", "print the token of a tenant or of hosts", _GROUP, f"{place}:add_token"),
    ]  # fmt: skip


@hookimpl
def astraflow_launchers() -> list[Component]:
    """``pool``."""
    return [
        Component(
            name="pool",
            target="astraflow_contrib_pool.launcher:PoolLauncher",
            config="astraflow_contrib_pool.config:PoolLauncherConfig",
            summary="takes RaaS from a pool that other runs use too; starts the rest here",
        )
    ]
