"""The ways in which a trainer lays rows out for a forward pass, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch
from astraflow_training.micro_batches import MicroBatch, micro_batches
from astraflow_training.prefix_trees import tree_micro_batches

Layout = Literal["bucketed", "packed", "tree"]


def layout_for(
    named: Literal["auto", "bucketed", "packed", "tree"], attention: str, trees: bool = False
) -> Layout:
    """What ``auto`` means with this kind of attention: trees if they pay, packed where attention knows where rows
    begin."""
    if named != "auto":
        return named
    if trees:
        return "tree"
    return "packed" if attention == "flash_attention_2" else "bucketed"


def cut(
    batch: Batch, wanted: npt.NDArray[np.bool_], budget: int, layout: Layout
) -> Iterator[MicroBatch]:
    """Micro-batches of at most ``budget`` inputs that together predict every ``wanted`` token (bool ``[N]``) but the
    first of a row; a longer row goes alone.

    Rows with recorded experts or images are not laid out as trees: two rows that begin with the same tokens may have gone
    through other experts, or seen other images."""
    if layout == "tree" and batch.routed_experts is None and not batch.images:
        return tree_micro_batches(batch, wanted, budget)
    return micro_batches(batch, wanted, budget, layout == "packed")
