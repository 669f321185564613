"""Whether the components of a run fit together, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from astraflow_core.capabilities import CAPABILITIES, pairing_problems
from astraflow_engine_host.drafts import KEY as STORED_DRAFTS
from astraflow_runtime.config.exactness import exactness_lines

if TYPE_CHECKING:
    from pydantic import BaseModel

    from astraflow_core.catalog import Selected
    from astraflow_core.config.models import FrozenEngineTable, PolicyTable, RunConfig

Components = Mapping[str, tuple["Selected", "BaseModel | None"]]
"""Dotted path of a component table → what it selected and its validated keys."""
_Used = tuple[str, str, frozenset[str]]
"""Dotted path of a component table, what it uses, and the capabilities of that."""


def pairing_lines(config: RunConfig, components: Components) -> list[str]:
    """Each misfit of a run as one line with its dotted path."""
    lines = []
    for name, policy in config.policies.items():
        lines += _of_policy(config, f"policies.{name}", policy, components)
    for name, engine in config.engines.items():
        lines += _of_follower(config, f"engines.{name}", engine, components)
        if getattr(components[f"engines.{name}"][1], STORED_DRAFTS, 0):
            lines.append(
                f"engines.{name}.{STORED_DRAFTS}: the rollout store has what policies sample, and nothing of this engine; leave "
                "it out"
            )
    launcher = components.get("launcher")
    if config.run.colocated and launcher and "local" not in launcher[0].component.capabilities:
        lines.append(
            "run.colocated: only processes of one host can share devices; launcher "
            f"{config.launcher.use!r} may place them on several"
        )
    return lines + _of_loans(config, components) + _of_balance(config, components)


def _of_loans(config: RunConfig, components: Components) -> list[str]:
    lines = []
    for path, (selected, keys) in components.items():
        if "borrow" not in selected.component.capabilities:
            continue
        borrower, source = path.split(".")[1], getattr(keys, "source", "")
        lenders = sorted(config.policies.keys() - {borrower})
        if path.startswith("prompts."):
            lines.append(
                f"{path}: this data policy borrows rows for batches, so it belongs in [policies.NAME] data"
            )
        elif source not in lenders:
            lines.append(
                f"{path}.source: {source!r} is not another policy of this run; the others are: "
                f"{', '.join(lenders) or 'none'}"
            )
    return lines


def _of_balance(config: RunConfig, components: Components) -> list[str]:
    use, raas = config.balance.use, config.raas
    lines = [
        f"{path}.use: {selected.component.name!r} decides how many RaaS to run and has no effect in a list "
        "of data policies; name it in [balance]"
        for path, (selected, _) in components.items()
        if path != "balance" and "scale" in selected.component.capabilities
    ]
    selected, keys = components["balance"]
    if selected.packaged and "scale" not in selected.component.capabilities:
        lines.append(
            f"balance.use: {use!r} does not decide how many RaaS to run; name a data policy with capability scale"
        )
    fewest, most = getattr(keys, "min_replicas", 1), getattr(keys, "max_replicas", None)
    if raas.autoscale and most is None:
        lines.append("raas.autoscale: requires balance.max_replicas, the maximum number of RaaS")
    elif most is not None and raas.autoscale and not fewest <= raas.replicas <= most:
        lines.append(
            f"raas.replicas: {raas.replicas}, the number at start, must lie between "
            f"balance.min_replicas = {fewest} and balance.max_replicas = {most}"
        )
    return lines


def _of_follower(
    config: RunConfig, where: str, table: FrozenEngineTable, components: Components
) -> list[str]:
    if table.follows is None:
        return []
    if (policy := config.policies.get(table.follows)) is None:
        return [
            (
                f"{where}.follows: {table.follows!r} is not a policy of this run; its policies are "
                f"{', '.join(config.policies)}"
            )
        ]
    transport = components[f"policies.{table.follows}.transport"][0].component
    engine = components[where][0].component
    lines = _of_refresh(
        config.raas.pause,
        (where, policy.transport.use, transport.capabilities),
        (where, table.use, engine.capabilities),
        "it cannot follow a policy; name another engine",
    )
    if table.model != policy.model:
        lines.append(
            f"{where}.model: must be the model of policies.{table.follows}, because it serves the versions of that "
            "policy"
        )
    return lines


def _of_refresh(pause: str, transport: _Used, engine: _Used, frozen: str) -> list[str]:
    """What keeps an engine from loading the versions of a transport; ``frozen`` states what that means for one
    that never does."""
    (where, _, can_bring), (engine_path, use, can_serve) = transport, engine
    problems = pairing_problems("transport", transport[1], can_bring, "engine", use, can_serve)
    lines = [f"{where}: {problem}" for problem in problems]
    if "frozen" in can_serve:
        return [*lines, f"{engine_path}: {use!r} is frozen and loads no weights, so {frozen}"]
    if f"pause.{pause}" not in can_serve:
        modes = sorted(
            flag.removeprefix("pause.") for flag in can_serve if flag.startswith("pause.")
        )
        lines.append(
            f"raas.pause: {pause!r} needs engine capability pause.{pause}; {use!r} of "
            f"{engine_path.removesuffix('.engine')} "
            f"{'offers ' + ', '.join(modes) if modes else 'declares no pause mode'}"
        )
    return lines


def _of_router_replay(where: str, policy: PolicyTable, components: Components) -> list[str]:
    lines = [
        f"{where}.router_replay: needs {kind} capability router_replay; {table.use!r} lacks it: leave the key out, or name "
        f"{'an engine' if kind == 'engine' else 'a trainer'} that has it (`astraflow plugins`)"
        for kind, table in (("engine", policy.engine), ("trainer", policy.trainer))
        if "router_replay" not in components[f"{where}.{kind}"][0].component.capabilities
    ]
    if getattr(components[f"{where}.trainer"][1], "compile", False):
        lines.append(
            f"{where}.trainer.compile: a compiled model does not take recorded experts; leave out compile or "
            "router_replay"
        )
    return lines


def _of_images(where: str, policy: PolicyTable, components: Components) -> list[str]:
    lines = [
        f"{where}.images: needs {kind} capability images; {table.use!r} lacks it: leave the key out, or name "
        f"{'an engine' if kind == 'engine' else 'a trainer'} that has it, such as 'torch' (`astraflow plugins`)"
        for kind, table in (("engine", policy.engine), ("trainer", policy.trainer))
        if "images" not in components[f"{where}.{kind}"][0].component.capabilities
    ]
    keys = components[f"{where}.trainer"][1]
    for key, wanted in (("lora_rank", "0"), ("compile", "false"), ("batch_invariant", "false")):
        if getattr(keys, key, False):
            lines.append(
                f"{where}.trainer.{key}: cannot be combined with images; set it to {wanted}"
            )
    if getattr(components[f"{where}.engine"][1], "batch_invariant", False):
        lines.append(
            f"{where}.engine.batch_invariant: cannot be combined with images; set it to false"
        )
    return lines


def _of_adapters(where: str, policy: PolicyTable, components: Components) -> list[str]:
    trainer, keys = components[f"{where}.trainer"]
    rank = getattr(keys, "lora_rank", 0)
    if not rank or "lora" not in trainer.component.capabilities:
        return []
    served = components[f"{where}.engine"][1]
    most = getattr(served, "lora_rank", rank) or 0
    lines = [
        f"{where}.trainer.lora_rank: {rank} trains an adapter, which needs {kind} capability {flag}; {table.use!r} lacks it: "
        f"set the key to 0, or name another {kind} (`astraflow plugins`)"
        for kind, flag, table in (
            ("engine", "lora", policy.engine),
            ("transport", "adapter", policy.transport),
        )
        if flag not in components[f"{where}.{kind}"][0].component.capabilities
    ]
    if most < rank:
        lines.append(
            f"{where}.engine.lora_rank: {most or 'none'} is below the rank of the adapters of "
            f"{where}.trainer.lora_rank = {rank}, so {policy.engine.use!r} would refuse each version; set it to {rank} or more"
        )
    return lines


def _of_policy(
    config: RunConfig, where: str, policy: PolicyTable, components: Components
) -> list[str]:
    trainer, engine, transport, algorithm = (
        components[f"{where}.{key}"][0] for key in ("trainer", "engine", "transport", "algorithm")
    )
    can_train, can_serve = trainer.component.capabilities, engine.component.capabilities
    name = where.rpartition(".")[2]
    lines = _of_refresh(
        config.raas.pause,
        (f"{where}.transport", policy.transport.use, transport.component.capabilities),
        (f"{where}.engine", policy.engine.use, can_serve),
        f"it cannot serve a policy that is trained; name another engine, or move it to [engines.{name}]",
    )
    if config.tls is not None and "plain_text" in transport.component.capabilities:
        lines.append(
            f"{where}.transport: {policy.transport.use!r} has unencrypted connections, so it cannot be used with [tls]; name "
            "'http' or 'zmq', or 'auto', or leave [tls] out on a network that you trust"
        )
    if config.run.colocated and "sleep" not in can_serve:
        lines.append(
            f"run.colocated: needs engine capability sleep; {policy.engine.use!r} of {where} lacks it"
        )
    if config.run.probe_every and "score" not in can_serve:
        lines.append(
            f"run.probe_every: needs engine capability score; {policy.engine.use!r} of {where} lacks it; set 0, or name an "
            "engine that has it"
        )
    if policy.trainer.ranks > 1 and "multi_rank" not in can_train:
        lines.append(
            f"{where}.trainer.ranks: {policy.trainer.ranks} ranks need trainer capability multi_rank; "
            f"{policy.trainer.use!r} lacks it"
        )
    if policy.router_replay:
        lines += _of_router_replay(where, policy, components)
    if policy.images:
        lines += _of_images(where, policy, components)
    lines += _of_adapters(where, policy, components)
    lines += exactness_lines(where, policy, components)
    if (
        getattr(components[f"{where}.engine"][1], STORED_DRAFTS, 0)
        and not config.rollouts.groups_per_step
    ):
        lines.append(
            f"{where}.engine.{STORED_DRAFTS}: drafts come from the rollout store, and rollouts.groups_per_step = 0 stores "
            "nothing; store groups, up to all of a batch, or set the key to 0"
        )
    publishes = getattr(components[f"{where}.trainer"][1], "publish", "")
    if publishes == "sharded" and "sharded" not in transport.component.capabilities:
        lines.append(
            f"{where}.trainer.publish: 'sharded' needs transport capability sharded; "
            f"{policy.transport.use!r} lacks it"
        )
    if config.checkpoint.every and "checkpoint" not in can_train:
        lines.append(
            f"checkpoint.every: needs trainer capability checkpoint; {policy.trainer.use!r} of {where} lacks it"
        )
    needs: frozenset[str] = getattr(components[f"{where}.algorithm"][1], "needs", frozenset())
    possible = algorithm.component.capabilities
    lines += [
        f"{where}.algorithm: {policy.algorithm.use!r} with these keys needs trainer capability {need}; "
        f"{policy.trainer.use!r} lacks it"
        for need in sorted(needs & CAPABILITIES["trainer"].keys() - can_train)
    ]
    undeclared = sorted(needs - possible)
    if undeclared and algorithm.packaged:
        lines.append(
            f"{where}.algorithm: {policy.algorithm.use!r} needs {', '.join(undeclared)} without declaring it "
            "among its capabilities; report this to its authors"
        )
    return lines
