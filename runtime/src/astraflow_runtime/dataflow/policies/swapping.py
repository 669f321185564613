"""Replaces a data policy during a run, and reverts that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from astraflow_core.config.models import DataPolicyTable
from astraflow_core.config.rendering import render
from astraflow_core.errors import AstraFlowError, PluginError, Refused
from astraflow_core.protocols.data_policy import Follow, Stateful
from astraflow_runtime.dataflow.journal.entries import Swapped
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_runtime.dataflow.row_source import check_row_sources
from astraflow_runtime.dataflow.state import PROMPTS, FlowState
from astraflow_wire.limits import MAX_SWAPS
from astraflow_wire.messages import PolicySwapped, SwapPolicy

log = logging.getLogger(__name__)

PolicyBuilder = Callable[[str, DataPolicyTable, int], Any]
"""``build(place, table, number)``: the component of a table; ``number`` counts the swaps of the run, so that
each instance has its own seed."""


class Swapping:
    """Swaps data policies by name. A policy of the same component takes over the state; any other
    starts fresh and is informed about the prompts in flight. ``tables``: the configuration of each
    place; ``build`` creates components.
    """

    def __init__(
        self,
        state: FlowState,
        tables: Mapping[str, tuple[DataPolicyTable, ...]],
        build: PolicyBuilder,
    ) -> None:
        self._state, self._build = state, build
        self._tables = {
            (place, table.label): [table] for place, listed in tables.items() for table in listed
        }
        self._named = {table.use for listed in tables.values() for table in listed}
        self._done: dict[str, PolicySwapped] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        """Place and name of each policy that was swapped → the number of its last swap."""

    def rebuild(self, place: str, name: str, tables: list[DataPolicyTable], number: int) -> None:
        """Put the policy there that swap ``number`` put there; ``tables``: as they were then."""
        component = self._build(place, tables[-1], number)
        self._chain(place).replace(NamedPolicy(name, component, tables[-1].shadow))
        self._tables[place, name] = tables
        self.numbers[place, name] = number

    def tables(self, place: str, name: str) -> list[DataPolicyTable]:
        """The table of a policy and the previous one, if any, the current one last."""
        return self._tables[place, name]

    def swap(self, message: SwapPolicy) -> PolicySwapped:
        """Replace a policy, or with an empty ``table`` return to the previous table. A repeated message changes
        nothing.
        400: the place or policy does not exist, the table is invalid, or there is no previous one."""
        if message.id in self._done:
            return self._done[message.id]
        if len(self._done) >= MAX_SWAPS:
            raise Refused(
                409, f"this run reached the limit of {MAX_SWAPS} data policy swaps; restart it"
            )
        chain = self._chain(message.place)
        history = self._tables.get((message.place, message.name))
        if history is None:
            names = ", ".join(repr(name) for place, name in self._tables if place == message.place)
            raise Refused(
                400,
                f"{message.place!r} has no data policy {message.name!r}; it has {names or 'none'}",
            )
        if not message.table and len(history) < 2:
            raise Refused(400, f"{message.name!r} of {message.place!r} was not swapped")
        table = self._validated(message) if message.table else history[-2]
        self._check_named(table)
        self._put(message, chain, table, same=table.use == history[-1].use)
        history[-1:] = [history[-1], table] if message.table else []
        return self._record_swap(message, table)

    def _validated(self, message: SwapPolicy) -> DataPolicyTable:
        where = f"{message.place}.{message.name}"
        try:
            table = DataPolicyTable.model_validate(message.table)
        except ValidationError as error:
            raise Refused(400, "; ".join(render(error, DataPolicyTable, where))) from error
        if table.name not in (None, message.name):
            raise Refused(400, f"{where} keeps its name; remove name = {table.name!r}")
        return table

    def _check_named(self, table: DataPolicyTable) -> None:
        """Every process with the token, each RaaS included, may send a swap. Only the author of the
        configuration chooses what is imported by path: otherwise 403, before anything is imported.
        """
        if ":" in table.use and table.use not in self._named:
            raise Refused(
                403,
                f"use = {table.use!r} is a Python path that is not a data policy in the config of this "
                "run; name an installed component, or start the run with it",
            )

    def _put(
        self, message: SwapPolicy, chain: PolicyPipeline, table: DataPolicyTable, *, same: bool
    ) -> None:
        old = chain.policy(message.name)
        before = old.component
        where = f"{message.place}.{message.name}"
        carried = before.state_dict() if same and isinstance(before, Stateful) else None
        try:
            component = self._build(message.place, table, len(self._done) + 1)
            if carried is not None:
                component.load_state_dict(carried)
        except AstraFlowError as error:
            raise Refused(400, f"{where}: {error}") from error
        except Exception as error:
            # Plugin code runs on keys of the sender; nothing has changed yet.
            raise Refused(
                400,
                f"{where}: it cannot be created with these keys, or cannot restore the state: "
                f"{type(error).__name__}: {error}",
            ) from error
        try:
            chain.replace(NamedPolicy(message.name, component, table.shadow))
            try:
                check_row_sources({p: s.row_source for p, s in self._state.streams.items()})
            except PluginError:
                chain.replace(old)
                raise
        except AstraFlowError as error:
            raise Refused(400, f"{where}: {error}") from error
        if not same and message.place == PROMPTS and isinstance(component, Follow):
            for prompt in self._state.train.prompts:
                component.on_admitted(prompt)

    def _record_swap(self, message: SwapPolicy, table: DataPolicyTable) -> PolicySwapped:
        state = self._state
        if message.place != PROMPTS:
            state.streams[message.place].rearrange()
        entry = Swapped(message=message, versions=dict(state.versions.newest))
        state.records.append(entry)
        answer = PolicySwapped(
            number=len(self._done) + 1, table=table.model_dump(exclude_none=True)
        )
        self._done[message.id] = answer
        self.numbers[message.place, message.name] = answer.number
        state.swaps.append(
            {
                "number": answer.number,
                "at": message.at,
                "author": message.author,
                "versions": entry.versions,
                "place": message.place,
                "name": message.name,
                "table": answer.table,
                "rollback": not message.table,
            }
        )
        if not state.replaying:
            log.warning(
                "data policy %r of %s is now %s, set by %s (swap %d)",
                message.name, message.place, answer.table, message.author, answer.number,
            )  # fmt: skip
        state.signals.work()
        if message.place != PROMPTS:
            state.signals.trainer(message.place)
        return answer

    def _chain(self, place: str) -> PolicyPipeline:
        chains = self._state.chains_by_place()
        if place not in chains:
            known = ", ".join(chains)
            raise Refused(
                400, f"there is no place {place!r} for data policies; the places are {known}"
            )
        return chains[place]
