"""Whether engine and trainer of a policy are to have bitwise equal log-probs, and what keeps them from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

    from astraflow_core.catalog import Selected
    from astraflow_core.config.models import PolicyTable, RunConfig

KEY = "batch_invariant"
"""The key of an engine and of a trainer."""
PAIRS = "engine 'torch' with trainer 'torch'"
"""Those that can."""


def is_exact(policy: PolicyTable) -> bool:
    """Whether both sides have :data:`KEY`: then a gap between their log-probs is an error."""
    return all(table.options.get(KEY) is True for table in (policy.engine, policy.trainer))


def exact_policies(config: RunConfig) -> frozenset[str]:
    """The policies of a run that :func:`is_exact` holds for."""
    return frozenset(name for name, policy in config.policies.items() if is_exact(policy))


def exactness_lines(
    where: str,
    policy: PolicyTable,
    components: Mapping[str, tuple[Selected, BaseModel | None]],
) -> list[str]:
    """What of a policy is incompatible with :data:`KEY` on either side: lines with dotted paths."""
    sides = {"engine": policy.engine, "trainer": policy.trainer}
    asked = [kind for kind, table in sides.items() if table.options.get(KEY) is True]
    lines = []
    for kind in sides.keys() - asked if asked else ():
        keys, use = components[f"{where}.{kind}"][1], sides[kind].use
        reason = f"{where}.{asked[0]} has {KEY} = true, for bitwise equal log-probs"
        if keys is not None and KEY in type(keys).model_fields:
            lines.append(f"{where}.{kind}.{KEY}: must be true too: {reason}")
        else:
            lines.append(
                f"{where}.{kind}: {reason}, which {use!r} cannot provide; the pairs that can: {PAIRS}; name that pair, or "
                f"leave {KEY} out"
            )
    devices = [
        str(table.options.get("device", "auto")).partition(":")[0] for table in sides.values()
    ]
    if asked and devices[0] != devices[1]:
        lines.append(
            f"{where}.engine.device: {KEY} needs the same kind of device on both sides, not {devices[0]!r} and "
            f"{devices[1]!r} of the trainer"
        )
    if asked and policy.router_replay:
        lines.append(
            f"{where}.router_replay: {KEY} does not support models with experts; leave one of the two out"
        )
    return lines


def mismatch_expected(engine: BaseModel | None, trainer: BaseModel | None) -> str:
    """The gap to expect of a pair without :data:`KEY`, in words, by the dtypes among its keys."""
    dtypes = [getattr(engine, "dtype", "auto")]
    dtypes += [getattr(trainer, name, "auto") for name in ("compute_dtype", "publish_dtype")]
    if "bfloat16" in dtypes:
        return "about 1e-3 to 1e-2 nats, since weights or products are rounded to bfloat16"
    return "about 1e-6 nats in float32, more in other types"
