"""Data policies of an image: those that have a state give it away as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from astraflow_core.config.models import DataPolicyTable
from astraflow_core.protocols.data_policy import Stateful
from astraflow_runtime.dataflow.image.attributes import put, taken
from astraflow_runtime.dataflow.image.schema import ChainImage, SwapImage
from astraflow_runtime.dataflow.policies.pipeline import PolicyPipeline
from astraflow_runtime.dataflow.policies.swapping import Swapping

State = dict[str, Any] | None


def as_json(state: State) -> str | None:
    """The JSON of the state of a data policy, which does not change once it is given."""
    return None if state is None else json.dumps(state)


def save_chain(chain: PolicyPipeline) -> tuple[ChainImage, list[State]]:
    """A list of data policies, and their states, whose JSON the image still lacks."""
    return (
        taken(
            ChainImage,
            chain,
            shadows={name: replace(counts) for name, counts in chain.shadows.items()},
            decisions=[(*key, count) for key, count in chain.decisions.items()],
            states=[],
        ),
        chain.state_dict(),
    )


def restore_chain(chain: PolicyPipeline, image: ChainImage) -> None:
    """Be what was saved, with the same data policies."""
    put(chain, image, "decisions", "states")
    for by, point, what, count in image.decisions:
        chain.decisions[by, point, what] = count
    chain.load_state_dict([None if one is None else json.loads(one) for one in image.states])


def state_of(component: Any) -> State:
    """The state of a component, if it has one."""
    return component.state_dict() if isinstance(component, Stateful) else None


def load_state(component: Any, state: str | None) -> None:
    """Restore :func:`state_of`."""
    if state is not None:
        component.load_state_dict(json.loads(state))


def save_swaps(swapping: Swapping) -> list[SwapImage]:
    """The data policies that were swapped."""
    return [
        SwapImage(
            place,
            name,
            [table.model_dump(exclude_none=True) for table in swapping.tables(place, name)],
            number,
        )
        for (place, name), number in swapping.numbers.items()
    ]


def restore_swaps(swapping: Swapping, images: list[SwapImage]) -> None:
    """Build them again, without their states."""
    for each in images:
        tables = [DataPolicyTable.model_validate(table) for table in each.tables]
        swapping.rebuild(each.place, each.name, tables, each.number)
