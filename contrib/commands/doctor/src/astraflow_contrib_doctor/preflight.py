"""The numerical preflight of a run: a short real start of the engine and the trainer of each policy."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astraflow_contrib_doctor import texts
from astraflow_contrib_doctor.diagnosis import images, router_replay
from astraflow_contrib_doctor.engine_side import NAME, engine_side
from astraflow_contrib_doctor.finding import Finding
from astraflow_contrib_doctor.frozen import judge_frozen, measure_frozen
from astraflow_contrib_doctor.judge import Judge
from astraflow_contrib_doctor.measure import PROMPTS, PolicyMeasurement
from astraflow_contrib_doctor.templates import check_chat_template
from astraflow_contrib_doctor.trainer_side import trainer_side
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import LoadedConfig, component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.protocols.transport import Receiver
from astraflow_runtime.config.exactness import is_exact
from astraflow_runtime.models.folders import resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.raas.episodes.dry_notes import NOT_CALLED
from astraflow_runtime.raas.episodes.dry_process import (
    BLOCKS,
    VARIABLE,
    check_evaluated,
    dry_call,
    is_live,
    longest_s,
)
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.telemetry.redirecting import said_to
from astraflow_wire.host.sockets import socket_folder
from astraflow_wire.http.auth import new_token

MOST_GAP = 0.05
"""Mean gap of log-probs, in nats, that engine and trainer may have; an engine in bfloat16 has about 0.01."""

_LAST_LINES = 12


def preflight(loaded: LoadedConfig, most: float = MOST_GAP) -> Iterator[Finding]:
    """Start engine and trainer of each policy, one policy after the other, and compare their numbers; then each
    frozen engine, and compare it with itself.

    The output of the processes goes to a separate file, whose last lines are part of the finding
    if one does not start. Raises :class:`UserError` for a missing model.
    """
    config = resolve_models(loaded.config, ModelResolver(loaded.catalog))
    found = list(_of_experts(loaded, config))
    yield from found
    if any(finding.level == "problem" for finding in found):
        return
    with tempfile.TemporaryDirectory(prefix="astraflow-doctor-") as scratch:
        directory = Path(scratch)
        try:
            own = _texts_of_prompts(loaded.catalog, config, directory)
        except AstraFlowError as error:
            yield Finding("problem", "prompts", str(error), "fix the data that [prompts] names")
            return
        yield from check_trackers(loaded)
        yield from _of_code(loaded.catalog, config, directory)
        for policy in config.policies:
            yield from _of_policy(loaded.catalog, config, directory, policy, own, most)
        for name in config.engines:
            yield from _of_frozen(loaded.catalog, config, directory, name, own, most)


def _of_experts(loaded: LoadedConfig, config: RunConfig) -> Iterator[Finding]:
    """Those of models that were references until now."""
    for name, policy in config.policies.items():
        named = loaded.config.policies[name].model
        if policy.router_replay and policy.model != named:
            yield router_replay(name, named, Path(policy.model))
        if policy.images and policy.model != named:
            yield images(name, named, Path(policy.model))


def check_trackers(loaded: LoadedConfig) -> Iterator[Finding]:
    """What their keys say of this machine: a config model may have a method ``trouble``, which returns a text or nothing."""
    for name in loaded.config.trackers:
        _, keys = loaded.components[f"trackers.{name}"]
        said = getattr(keys, "trouble", str)()
        fix = "fix this; otherwise the run continues without the tracker" if said else ""
        yield Finding("warning" if said else "ok", f"tracker {name}", said or "can start", fix)


def _of_code(catalog: Catalog, config: RunConfig, directory: Path) -> Iterator[Finding]:
    """Workflow and reward, in the dry call that a run makes too before it starts."""
    if longest_s() is None or config.workflow is None:
        return
    if is_live(config, catalog):
        try:
            check_evaluated(config, catalog)
        except UserError as error:
            yield Finding("problem", "eval", str(error), "follow its instructions")
        text = f"not called: workflow {config.workflow.use!r} waits for requests from outside"
        yield Finding("ok", "workflow and reward", text)
        return
    first = _prompts(catalog, config, directory)[0]
    try:
        note = dry_call(config, catalog, first)
    except UserError as error:
        yield Finding("problem", "workflow and reward", str(error), "fix what it names")
        return
    said = note or f"one dry call with prompt {first.id!r} and a completion that was made up"
    fix = f"raise the limit with {VARIABLE}, or check them in the run" if note else ""
    if NOT_CALLED in note:
        fix = ""  # the note says it
    if BLOCKS in note:
        fix = (
            "await slow operations there; a reward that must block declares the capability `blocking`, or has a plain "
            "`def score`: it runs in worker processes then"
        )
    yield Finding("warning" if note else "ok", "workflow and reward", said, fix)


def _of_policy(
    catalog: Catalog,
    config: RunConfig,
    directory: Path,
    policy: str,
    own: Sequence[str],
    most: float,
) -> Iterator[Finding]:
    model = Path(config.policies[policy].model)
    subject = f"policies.{policy}"
    try:
        tokenizer = FolderTokenizer(model)
    except UserError as error:
        yield _without_tokenizer(subject, error, model)
        return
    yield from texts.check_tokenizer(subject, tokenizer, model, own)
    yield from texts.check_stops(subject, tokenizer, config.sampling.stop)
    yield check_chat_template(subject, tokenizer, _several_turns(catalog, config))
    prompts = texts.probe_prompts(tokenizer, own, texts.vocabulary_of(model), PROMPTS)
    fix = f"fix what the last line says; --set {subject}.engine.KEY=VALUE tries another value"
    if config.run.colocated:
        yield Finding(
            "ok",
            f"{subject} colocated",
            "measured with engine and trainer side by side, which the run lets take turns on the devices: numbers do "
            "not depend on it, and sleep and wake are the engine's conformance suite's",
        )
        fix += (
            "; if memory is short: the run shares the devices by turns and the doctor does not, so give the engine "
            "less for this check"
        )
    measured = _measured(catalog, config, directory, policy, prompts, most)
    yield from _run_and_judged(subject, directory / f"{policy}.log", measured, fix)


def _of_frozen(
    catalog: Catalog,
    config: RunConfig,
    directory: Path,
    name: str,
    own: Sequence[str],
    most: float,
) -> Iterator[Finding]:
    table, where = config.engines[name], f"engines.{name}"
    model = Path(table.model)
    try:
        tokenizer = FolderTokenizer(model)
    except UserError as error:
        yield _without_tokenizer(where, error, model)
        return
    yield from texts.check_tokenizer(where, tokenizer, model, own)
    yield check_chat_template(where, tokenizer, _several_turns(catalog, config))
    prompts = texts.probe_prompts(tokenizer, own, texts.vocabulary_of(model), PROMPTS)
    scoring = "score" in catalog.flags(Kind.ENGINE, table.use)
    measured = _measured_frozen(config, directory, name, prompts, scoring, most)
    fix = f"fix what the last line says; --set {where}.KEY=VALUE tries another value"
    yield from _run_and_judged(where, directory / f"{name}.log", measured, fix)


def _several_turns(catalog: Catalog, config: RunConfig) -> bool:
    workflow = config.workflow
    return workflow is not None and "multi_turn" in catalog.flags(Kind.WORKFLOW, workflow.use)


def _without_tokenizer(where: str, error: UserError, model: Path) -> Finding:
    return Finding("problem", f"{where}.tokenizer", str(error), f"put the model's into {model}")


def _run_and_judged(
    where: str, log: Path, measured: Coroutine[Any, Any, list[Finding]], fix: str
) -> Iterator[Finding]:
    """The findings of a start, or the reason why there are none, with the last lines of its output."""
    try:
        with said_to(log):
            findings = asyncio.run(measured)
    except (AstraFlowError, ValueError) as error:
        # An error that the user can fix is complete in itself.
        mendable = isinstance(error, UserError)
        said = [] if mendable else log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        lines = "".join(f"\n  {line}" for line in said)
        text = f"{error}{lines and '; last lines:'}{lines}"
        yield Finding("problem", f"{where} start", text, fix)
    else:
        yield from findings


async def _measured_frozen(
    config: RunConfig,
    directory: Path,
    name: str,
    prompts: Sequence[texts.Tokens],
    scoring: bool,
    most: float,
) -> list[Finding]:
    sockets = socket_folder()
    try:
        async with engine_side(config, directory, name, new_token(), sockets.path) as engine:
            measured = await measure_frozen(engine, prompts, scoring)
    finally:
        sockets.close()
    return list(judge_frozen(f"engines.{name}", measured, most))


async def _measured(
    catalog: Catalog,
    config: RunConfig,
    directory: Path,
    policy: str,
    prompts: Sequence[texts.Tokens],
    most: float,
) -> list[Finding]:
    table, token = config.policies[policy], new_token()
    scoring = "score" in catalog.flags(Kind.ENGINE, table.engine.use)
    sockets = socket_folder()
    receiver = _receiver(catalog, config, directory, policy, token)
    try:
        async with contextlib.AsyncExitStack() as sides:
            engine = await sides.enter_async_context(
                engine_side(config, directory, policy, token, sockets.path)
            )
            trainer = await sides.enter_async_context(
                trainer_side(config, directory, policy, token, sockets.path)
            )
            probe = PolicyMeasurement(engine, trainer, prompts, scoring)
            measured = await probe.measure(config.sampling, receiver, config.run.deadline_s)
            semantics = engine.semantics
    finally:
        await asyncio.to_thread(receiver.close)
        sockets.close()
    judge = Judge(policy, semantics, config.sampling, most, is_exact(table))
    return list(judge.findings(measured))


def _receiver(
    catalog: Catalog, config: RunConfig, directory: Path, policy: str, token: str
) -> Receiver:
    context = component_context(config, directory, "raas", policy, NAME, token)
    context = replace(context, directory=directory / "state" / NAME / f"transport-{policy}")
    receiver: Receiver = catalog.build(
        Kind.TRANSPORT, config.policies[policy].transport, context
    ).receiver()
    return receiver


def _texts_of_prompts(catalog: Catalog, config: RunConfig, directory: Path) -> list[str]:
    """The texts in the first prompts of the run, each once."""
    source = _prompts(catalog, config, directory)
    found: dict[str, None] = {}
    for index in range(min(PROMPTS, len(source))):
        found |= dict.fromkeys(texts.own_texts(source[index].data))
    return list(found)


def _prompts(catalog: Catalog, config: RunConfig, directory: Path) -> PromptSource:
    context = component_context(config, directory, "launcher", "", "prompts", "")
    source: PromptSource = catalog.build(Kind.PROMPT_SOURCE, config.prompts, context)
    return source
