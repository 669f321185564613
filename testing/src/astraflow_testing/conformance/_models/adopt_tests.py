"""What a trainer promises that declares ``adopt``."""

from __future__ import annotations

from typing import cast

from astraflow_core.protocols.trainer import AdoptsWeights
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models.trainer_rig import DEMANDS, TrainerRig, exported, train
from astraflow_testing.conformance.subject import Subject


class AdoptTests:
    """Part of :class:`astraflow_testing.conformance.trainer.TrainerConformance`."""

    @capability("adopt")
    def test_adopted_weights_are_exported_to_the_bit(
        self, component: Subject, rig: TrainerRig
    ) -> None:
        through, folder = rig.build(), rig.folder("adopted")
        train(through, range(2))
        through.save_model(folder)
        expected = exported(through)
        train(through, [2])
        for name, trainer in (("a fresh trainer", rig.build()), ("a trained one", through)):
            cast(AdoptsWeights, trainer).adopt(folder, 2)
            DEMANDS.that(
                exported(trainer) == expected,
                f"{name} exports other weights after adopt()",
                "the next export is the same to the bit as that of the weights adopted",
            )
            train(trainer, [2])
            DEMANDS.that(
                exported(trainer) != expected,
                f"{name} does not learn after adopt()",
                "the next step trains the weights adopted",
            )
