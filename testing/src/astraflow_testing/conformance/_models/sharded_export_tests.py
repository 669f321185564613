"""Tests of a trainer that declares ``sharded_export``."""

from __future__ import annotations

import math
from typing import cast

from astraflow_core.protocols.trainer import ExportsShards
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models.trainer_rig import DEMANDS, TrainerRig, exported, train
from astraflow_testing.conformance.subject import Subject


class ShardedExportTests:
    """Part of :class:`astraflow_testing.conformance.trainer.TrainerConformance`; of one rank, which holds all."""

    @capability("sharded_export")
    def test_the_slices_make_up_the_export(self, component: Subject, rig: TrainerRig) -> None:
        trainer = rig.build()
        train(trainer, range(1))
        whole = exported(trainer)
        slices = cast(ExportsShards, trainer)
        got = {name: bytearray(len(tensor.data)) for name, tensor in whole.items()}
        given = dict.fromkeys(whole, 0)
        for part in slices.export_shards():
            tensor = whole.get(part.name)
            DEMANDS.that(
                tensor is not None and (tensor.dtype, tensor.shape) == (part.dtype, part.shape),
                f"export_shards() gives a slice of {part.name} as {part.dtype} {part.shape}",
                "slices of the tensors of export(), with the shape of the whole",
            )
            data = bytes(part.data)
            start = part.start * DTYPE_BYTES[part.dtype]
            got[part.name][start : start + len(data)] = data
            given[part.name] += len(data) // DTYPE_BYTES[part.dtype]
        for name, tensor in whole.items():
            DEMANDS.that(
                given[name] == math.prod(tensor.shape) and bytes(got[name]) == bytes(tensor.data),
                f"export_shards() gives {given[name]} of the {math.prod(tensor.shape)} elements of {name}, or "
                "other values",
                "every element of export() once, bit by bit",
            )
        DEMANDS.that(
            slices.publish in ("auto", "sharded", "gathered"),
            f"publish is {slices.publish!r}",
            "'auto', 'sharded' or 'gathered'",
        )
