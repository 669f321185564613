"""Reward ``judge``: the verdict of a language model."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from astraflow_contrib_rubrics.config import JudgeConfig
from astraflow_contrib_rubrics.judge_server import JudgeServer, NoVerdict, pause
from astraflow_contrib_rubrics.verdicts import case_of, digest, last_line, messages, verdict
from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, TrajectoryView

Asked = Callable[[list[dict[str, str]]], Awaitable[str]]


class Verdicts:
    """Verdicts by what was judged: equal cases are asked once, at most ``most_requests`` at a time."""

    def __init__(self, config: JudgeConfig) -> None:
        self._config = config
        self._known: OrderedDict[str, float] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def verdict(self, view: TrajectoryView, ask: Asked) -> float:
        """A number in [0, 1]; :class:`WorkflowError` if there is none: an unreadable verdict gives no reward."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._places = loop, asyncio.Semaphore(self._config.most_requests)
            self._under_way: dict[str, asyncio.Task[float]] = {}
        case = case_of(self._config, view)
        name = digest(case)
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name]
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = loop.create_task(self._judge_case(name, case, ask))
            task.add_done_callback(lambda done: self._ended(name, done))
        # The first caller may be cancelled; the others still need the verdict.
        return await asyncio.shield(task)

    def _ended(self, name: str, task: asyncio.Task[float]) -> None:
        self._under_way.pop(name, None)
        if not task.cancelled():
            task.exception()  # it was raised for the callers that still waited

    async def _judge_case(self, name: str, case: dict[str, str], ask: Asked) -> float:
        config = self._config
        reason = ""
        async with self._places:
            try:
                async with asyncio.timeout(config.deadline_s):
                    for attempt in range(config.attempts):
                        if attempt:
                            await pause(attempt)
                        try:
                            said = await ask(messages(config, case))
                        except NoVerdict as error:
                            reason = str(error)
                            if not error.again:
                                break
                            continue
                        found = verdict(said, config.highest)
                        if found is not None:
                            self._remember(name, found)
                            return found
                        reason = f"its last line is {last_line(said)}; expected 'Verdict: N', N from 0 to {config.highest}"
            except TimeoutError:
                reason = f"none came within {config.deadline_s:g} s (deadline_s)" + (
                    f"; before, {reason}" if reason else ""
                )
        raise WorkflowError(f"the judge gave no verdict: {reason}")

    def _remember(self, name: str, found: float) -> None:
        self._known[name] = found
        if len(self._known) > self._config.remembered:
            self._known.popitem(last=False)


class JudgeByUrl:
    """The share of the best verdict that a server's model gives the last completion."""

    def __init__(self, config: JudgeConfig) -> None:
        self._verdicts, self._server = Verdicts(config), JudgeServer(config)

    async def score(self, view: TrajectoryView) -> float:
        """In [0, 1]."""
        if not view.completions:
            return 0.0
        return await self._verdicts.verdict(view, self._server.ask)


class JudgeByEngine:
    """The share of the best verdict that a frozen engine of the run gives the last completion."""

    def __init__(self, config: JudgeConfig) -> None:
        self._config, self._verdicts = config, Verdicts(config)

    async def score(self, view: TrajectoryView, engines: Mapping[str, PolicyEngine]) -> float:
        """In [0, 1]."""
        if not view.completions:
            return 0.0
        engine = engines[str(self._config.engine)]

        async def ask(asked: list[dict[str, str]]) -> str:
            tokens = engine.render(asked)
            most = self._config.max_tokens
            if len(tokens) + most > engine.context_length:
                raise NoVerdict(
                    f"its input has {len(tokens)} tokens, and with max_tokens = {most} more than its context of "
                    f"{engine.context_length}; lower most_characters",
                    again=False,
                )
            sampling = replace(engine.sampling, max_tokens=most, temperature=0.0, stop_sequences=())
            return engine.completion(await engine.generate(tokens, sampling)).text

        return await self._verdicts.verdict(view, ask)


def build_judge(config: JudgeConfig, context: ComponentContext) -> JudgeByUrl | JudgeByEngine:
    """The judge that the keys name. :class:`UserError` if the run has no such engine."""
    if config.engine is None:
        return JudgeByUrl(config)
    if config.engine not in context.run.engines:
        known = ", ".join(map(repr, context.run.engines)) or "none"
        raise UserError(
            f"reward 'judge': engine = {config.engine!r} is not a frozen engine of the run, which has {known}; add "
            f"[engines.{config.engine}]"
        )
    return JudgeByEngine(config)
