"""Checks one RaaS: serves it a scripted dataflow and real weights, and reports the result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from astraflow_contrib_raas_check.outcome import RequirementFailed, RequirementOutcome
from astraflow_contrib_raas_check.protocol_conformance import Script
from astraflow_contrib_raas_check.scripted import ScriptedDataflow
from astraflow_contrib_raas_check.weights import Weights
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import LoadedConfig, component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import UserError
from astraflow_core.types import Prompt
from astraflow_runtime.models.folders import resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_wire.http.auth import bearer
from astraflow_wire.messages import AnnouncementMessage, SamplingMessage

GROUP_SIZE = 2
PROMPTS = 16
SECONDS = 30.0
HEALTH_EVERY_S = 0.05
HEALTH_GOAL_S = 0.1
HEALTH_DEADLINE_S = 5.0
END_S = 15.0

Say = Callable[[RequirementOutcome], None]


@dataclass(frozen=True)
class CheckOptions:
    """How to check: the RaaS serves ``health`` (a URL, or a file with ``{"url": …}``; empty: not
    checked), the scripted dataflow listens at ``host:port``. ``command`` starts the RaaS with
    ASTRAFLOW_DATAFLOW and ASTRAFLOW_TOKEN in its environment; without one the check waits for
    it."""

    loaded: LoadedConfig
    token: str = field(repr=False)
    health: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    command: Sequence[str] = ()
    seconds: float = SECONDS
    environment: Mapping[str, str] = field(default_factory=dict)


FIXES = {
    "registers": "post RegisterRaas with the token as bearer to ASTRAFLOW_DATAFLOW, as its first call",
    "serves_first": "lease with free = 0 (for the notices alone) until every policy has loaded a version",
    "rolls_out": "push one frame with GroupHeader and the four columns; docs/processes.md, Messages",
    "keeps_room": "ask for capacity less the episodes that run, whole groups",
    "renews": "renew every renew_s seconds from the reply to register, whatever else happens",
    "names_its_tasks": "list every leased task in RenewLeases.tasks",
    "pushes_again": "retry POST after a connection error or a 5xx, with the same bytes",
    "swaps": "load a version alongside the one that serves; let running requests continue, and stamp each token with the version that sampled it",
    "verifies": "hash the blocks that arrived, compare with the announced digest, and only then load",
    "outlives_the_trainer": "after a failed fetch keep serving, and retry",
    "registers_again": "after a 404 of lease or renew register again",
    "lets_go": "abort the tasks that the notices list as revoked; a 409 for a push is not an error",
    "discards": "when a notice lists a policy in discard, abort all tasks, forget all versions of the policy, and load the next announced one, whatever its number",
    "keeps_pins": "do not load another version while a policy is pinned, or while a pinned task runs",
    "refuses_what_is_too_long": "compare prompt + max_tokens with the context before sampling; fail the task with fatal = true",
    "speaks_well": "compare the message with docs/processes.md; unknown fields are rejected",
    "leaves": "post LeaveRaas when a notice says stop, then exit",
    "health": "serve GET /v1/health from an event loop that nothing blocks: load weights in a thread or in another process",
    "ends": "exit with code 0 after POST /v1/raas/leave",
}
"""Demand → what to do if it is not met."""

HEALTH = "It always answers GET /v1/health"

_ESSENTIAL = ("registers", "serves_first")
"""Without these nothing else can be tried."""


def check_raas(
    asked: CheckOptions, say: Say, waiting: Callable[[str], None] = lambda url: None
) -> list[RequirementOutcome]:
    """Check every requirement. ``say`` gets each outcome at once, ``waiting`` the URL of the
    scripted dataflow once it listens.
    """
    return asyncio.run(_check(asked, say, waiting))


async def _check(
    asked: CheckOptions, say: Say, waiting: Callable[[str], None]
) -> list[RequirementOutcome]:
    catalog = asked.loaded.catalog
    config = resolve_models(asked.loaded.config, ModelResolver(catalog))
    with tempfile.TemporaryDirectory(prefix="astraflow-check-") as scratch:
        directory = Path(scratch)
        flow = ScriptedDataflow(asked.host, asked.port, asked.token)
        await flow.server.start()
        waiting(flow.server.url)
        trainers = [await asyncio.to_thread(Weights, catalog, config, directory, asked.token)]

        async def publish(version: int) -> Mapping[str, AnnouncementMessage]:
            return await asyncio.to_thread(trainers[-1].publish, version)

        async def publish_anew(version: int) -> Mapping[str, AnnouncementMessage]:
            made = await asyncio.to_thread(
                Weights, catalog, config, directory / "anew", asked.token
            )
            trainers.append(made)
            return await publish(version)

        prompts = _prompts(catalog, config, directory)
        policies = tuple(config.policies)
        sampling = _sampling(config)
        script = Script(
            flow, publish, publish_anew, policies, prompts, sampling, GROUP_SIZE, asked.seconds
        )
        outcomes = _Outcomes(say)
        try:
            async with _running(asked, flow) as process:
                await _try_all(asked, script, outcomes)
                if process is not None and flow.left:
                    told = "Its process ends once it has left"
                    await outcomes.of("ends", told, lambda: _ends(process))
        finally:
            for weights in trainers:
                await asyncio.to_thread(weights.close)
            await flow.server.stop()
    return outcomes.all


class _Outcomes:
    """Checks requirements, and reports each at once."""

    def __init__(self, say: Say) -> None:
        self._say, self.all = say, list[RequirementOutcome]()

    async def of(self, name: str, told: str, demand: Callable[[], Awaitable[str]]) -> bool:
        """Whether the demand is met."""
        try:
            outcome = RequirementOutcome(told, "passed", await demand())
        except RequirementFailed as unmet:
            outcome = RequirementOutcome(told, "failed", str(unmet), FIXES[name])
        self.add(outcome)
        return outcome.state == "passed"

    def add(self, outcome: RequirementOutcome) -> None:
        """Add an outcome."""
        self.all.append(outcome)
        self._say(outcome)


async def _try_all(asked: CheckOptions, script: Script, outcomes: _Outcomes) -> None:
    health = _Health(asked)
    looking = asyncio.create_task(health.look())
    demands = {name: getattr(script, name) for name in FIXES if hasattr(script, name)}
    told = {name: str(demand.__doc__).strip().rstrip(".") for name, demand in demands.items()}
    try:
        reached = True
        for name, demand in demands.items():
            if not reached:
                outcomes.add(
                    RequirementOutcome(
                        told[name], "skipped", "no further check is possible without it"
                    )
                )
                continue
            if name == "leaves" and asked.health:
                looking.cancel()
                await outcomes.of("health", HEALTH, health.judge)
            met = await outcomes.of(name, told[name], demand)
            reached = met or name not in _ESSENTIAL
        if not reached and asked.health:
            await outcomes.of("health", HEALTH, health.judge)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


class _Health:
    """Polls GET /v1/health while weights load and tasks run."""

    def __init__(self, asked: CheckOptions) -> None:
        self._asked = asked
        self._seconds: list[float] = []
        self._trouble = "no answer so far"

    def _url(self) -> str | None:
        place = self._asked.health
        if place.startswith(("http://", "https://")):
            return place.rstrip("/")
        try:
            return str(json.loads(Path(place).read_text())["url"])
        except (OSError, ValueError, KeyError) as error:  # not there yet, or not whole
            self._trouble = f"neither http://… nor a file with {{'url': …}}: {error}"
            return None

    async def look(self) -> None:
        """Poll until cancelled."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_DEADLINE_S)
        async with aiohttp.ClientSession(
            headers=bearer(self._asked.token), timeout=timeout
        ) as http:
            while self._asked.health:
                if (url := self._url()) is not None:
                    await self._measure_round_trip(http, f"{url}/v1/health")
                await asyncio.sleep(HEALTH_EVERY_S)

    async def _measure_round_trip(self, http: aiohttp.ClientSession, url: str) -> None:
        began = time.monotonic()
        try:
            async with http.get(url) as response:
                await response.json(content_type=None)
                response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            if self._seconds:  # before the first answer it may not have started
                self._seconds.append(math.inf)
            self._trouble = f"{type(error).__name__}: {error}"
        else:
            self._seconds.append(time.monotonic() - began)

    async def judge(self) -> str:
        """Whether it always answered, and how soon."""
        if not self._seconds:
            raise RequirementFailed(f"{self._asked.health}: {self._trouble}")
        ordered = sorted(self._seconds)
        if failed := ordered.count(math.inf):
            raise RequirementFailed(f"{failed} of {len(ordered)} calls failed: {self._trouble}")
        late = ordered[math.ceil(0.99 * len(ordered)) - 1]
        goal = "" if late <= HEALTH_GOAL_S else f", over the goal of {1e3 * HEALTH_GOAL_S:.0f} ms"
        return f"p99 of {len(ordered)} calls: {1e3 * late:.1f} ms{goal}"


@contextlib.asynccontextmanager
async def _running(
    asked: CheckOptions, flow: ScriptedDataflow
) -> AsyncIterator[asyncio.subprocess.Process | None]:
    """The process of the RaaS, if the check starts it."""
    if not asked.command:
        yield None
        return
    environment = {
        **os.environ,
        **asked.environment,
        "ASTRAFLOW_DATAFLOW": flow.server.url,
        "ASTRAFLOW_TOKEN": asked.token,
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *asked.command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=2
        )
    except OSError as error:
        raise UserError(f"cannot start {asked.command[0]!r}: {error.strerror}") from error

    async def watch() -> None:
        code = await process.wait()
        flow.gone = f"its process ended with exit code {code}"
        await flow.note()

    watching = asyncio.create_task(watch())
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await watching


async def _ends(process: asyncio.subprocess.Process) -> str:
    try:
        async with asyncio.timeout(END_S):
            code = await process.wait()
    except TimeoutError:
        raise RequirementFailed(f"still there {END_S:g} s after it left") from None
    if code:
        raise RequirementFailed(f"exit code {code}")
    return "exit code 0"


def _prompts(catalog: Catalog, config: RunConfig, directory: Path) -> list[Prompt]:
    context = component_context(config, directory, "launcher", "", "prompts", "")
    source = catalog.build(Kind.PROMPT_SOURCE, config.prompts, context)
    return [source[index] for index in range(min(PROMPTS, len(source)))]


def _sampling(config: RunConfig) -> SamplingMessage:
    table = config.sampling
    return SamplingMessage(
        max_tokens=table.max_tokens,
        temperature=table.temperature,
        top_p=table.top_p,
        top_k=table.top_k,
        min_p=table.min_p,
        stop=list(table.stop),
    )
