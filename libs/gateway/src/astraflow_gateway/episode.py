"""An episode behind the gateway: what its agent may ask, what was sampled, what of it is trained."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np

from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import Completion, GenerateResult, Sampling
from astraflow_core.types import Sequence as TokenSequence
from astraflow_gateway.capture.graph import Call, CaptureGraph
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.chat.history import History, PromptPlan
from astraflow_gateway.chat.messages import ModelReply
from astraflow_gateway.chat.replies import forced_start, parse_reply
from astraflow_gateway.requests import (
    BadRequest,
    Choice,
    ContextExceeded,
    Finish,
    ModelAnswer,
    ModelRequest,
    NotEncodable,
)
from astraflow_gateway.rewards import TurnCredit

BUDGET_SPENT = "The budget of this episode is spent: no further requests are answered. Finish now with what you have."

NO_TOKENS = np.zeros(0, np.int32)
_DIGITS = 6
"""Of the number of a request, at the end of its id."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the agent of an episode may use: ``calls`` requests, ``tokens`` sampled, ``seconds`` in which requests begin."""

    calls: int
    tokens: int
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every episode. ``deviations``: sampling settings that an agent may choose;
    ``train_auxiliary``: also train requests without tools of an agent that has some; ``trained``: the policies that
    are trained, by default all; ``any_model``: a model that is no policy means the default one."""

    budget: Budget
    deviations: frozenset[str] = frozenset()
    train_auxiliary: bool = False
    trained: frozenset[str] | None = None
    any_model: bool = False


@dataclass
class Episode:
    """One episode over ``engines`` (name → engine). ``formats`` are shared by the episodes of a run. ``failure`` is why
    a request could not be answered, though it was in order; ``refusal`` is the last error that the agent got;
    ``kept`` is what dialects keep until the episode ends."""

    engines: Mapping[str, PolicyEngine]
    formats: Mapping[str, ChatFormat]
    rules: Rules
    default: str
    graph: CaptureGraph = field(default_factory=CaptureGraph)
    completions: list[Completion] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failure: Exception | None = None
    refusal: str = ""
    kept: dict[tuple[str, str], object] = field(default_factory=dict)
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.engines = {name: engine.session() for name, engine in self.engines.items()}
        self.histories = {
            name: History(engine, self.formats[name]) for name, engine in self.engines.items()
        }
        self._ids = (f"call{number:05d}" for number in itertools.count())
        self._name = secrets.token_hex(8)
        self._ends = monotonic() + self.rules.budget.seconds
        self._calls = self._tokens = self._under_way = 0
        self._one_ended = asyncio.Event()
        self._context = contextvars.copy_context()
        self._has_tools = False
        self._answers: dict[str, asyncio.Task[ModelAnswer]] = {}
        self._tasks: set[asyncio.Task[ModelAnswer]] = set()
        self._made: dict[str, tuple[Choice, ...]] = {}

    def policy_of(self, model: str) -> str:
        """The policy that ``model`` names; any name will do if there is one policy only."""
        if model in self.engines:
            return model
        if len(self.engines) == 1 or self.rules.any_model:
            return self.default
        names = ", ".join(self.engines)
        what = f"the model {model!r} does not exist" if model else "the request names no model"
        raise BadRequest(
            f"{what}; this run has {names}",
            404,
            "model_not_found",
            "model",
        )

    async def answer(
        self, request: ModelRequest, key: str = "", again: bool = False
    ) -> ModelAnswer:
        """The answer to ``request``. ``key`` identifies it: if it comes ``again``, it is answered as it was, or will
        be. An agent that goes away does not end what is sampled for it, since it may ask again."""
        task = self._answers.get(key) if again else None
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            # What happens in a request belongs to the episode, and not to the server that got it.
            task = asyncio.create_task(self.ask(request), context=self._context.copy())
            task.add_done_callback(_retrieved)
            task.add_done_callback(self._tasks.discard)
            self._tasks.add(task)
            self._answers[key] = task
        else:
            self.counts["retries"] += 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise BadRequest(
                    "the episode has ended", status=401, kind="invalid_api_key"
                ) from None
            raise

    @property
    def calls(self) -> int:
        """Number of requests so far."""
        return self._calls

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return any(not task.done() for task in self._tasks)

    async def close(self) -> None:
        """End what is still sampled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def prompt_tokens(self, request: ModelRequest) -> int:
        """How many tokens the prompt of ``request`` has, if it is made now."""
        return len(self._plan(request, self.histories[self.policy_of(request.model)]).tokens)

    def sequences(self) -> list[TokenSequence]:
        """What is trained."""
        return [sequence for _, sequence in self.graph.sequences()]

    def credit(self, turns: Sequence[TurnCredit], who: str) -> None:
        """Give turns the rewards and states that ``who`` says; those of a turn that is not trained have no effect. The last
        one counts. :class:`WorkflowError` for a turn that is not of this episode and a reward that is not finite."""
        for turn, call in [(turn, self._call_of(turn, who)) for turn in turns]:
            if call is None:  # it came when the budget was spent
                continue
            if turn.reward is not None:
                self.graph.turn_rewards[call] = turn.reward
            if turn.state is not None:
                self.graph.turn_states[call] = turn.state

    def _call_of(self, turn: TurnCredit, who: str) -> Call | None:
        choices = self._made.get(turn.id[-len(self._name) - _DIGITS :], ())
        if turn.choice >= len(choices):
            raise WorkflowError(
                f"{who} names turn {turn.id!r:.80}, choice {turn.choice}, which this episode does not have; expected the "
                f"id of one of its {self._calls} replies"
            )
        if turn.reward is not None and not math.isfinite(turn.reward):
            raise WorkflowError(
                f"{who} gave turn {turn.id!r:.80} the reward {turn.reward}; expected a finite number"
            )
        return choices[turn.choice].call

    def metrics(self) -> dict[str, float]:
        """``agent_calls`` and ``agent_tokens`` (sampled); and where there are some, ``agent_retries``, requests
        ``agent_over_budget``, and ``prompts_`` by their outcome (:class:`~astraflow_gateway.chat.history.PromptPlan`)."""
        found = Counter({f"agent_{name}": self.counts[name] for name in ("retries", "over_budget")})
        found.update({f"prompts_{name}": count for name, count in self.outcomes.items()})
        found["prompts_ambiguous"] += self.graph.ambiguous
        del found["prompts_first"]
        always = {"agent_calls": float(self._calls), "agent_tokens": float(self._tokens)}
        return always | {name: float(count) for name, count in found.items() if count}

    async def ask(self, request: ModelRequest, history: History | None = None) -> ModelAnswer:
        """The answer to ``request``; what is sampled for it ends with the caller. ``history`` is that of a conversation
        which shall know nothing of the others."""
        try:
            return await self._answer(request, history)
        except BadRequest as error:
            self.refusal = error.message
            raise
        except Exception as error:
            self.failure = self.failure or error
            self.failed.set()
            raise

    async def _answer(self, request: ModelRequest, history: History | None) -> ModelAnswer:
        policy = self.policy_of(request.model)
        alone = history is not None
        history = history or self.histories[policy]
        engine = self.engines[policy]
        number, self._calls = self._calls, self._calls + 1
        id, created = f"{self._name}{number:0{_DIGITS}}", int(time.time())
        allowed = number < self.rules.budget.calls and monotonic() < self._ends
        left = await self._tokens_left(request.n) if allowed else 0
        if not left:
            self.counts["over_budget"] += 1
            self._made[id] = (Choice(ModelReply(BUDGET_SPENT), "stop"),)
            return ModelAnswer(id, created, policy, engine.version, NO_TOKENS, self._made[id])
        start = self._start(request, policy)
        plan = self._prompt(request, history, start)
        prompt = plan.tokens
        sampling = self._sampling(request, engine, len(prompt), left)
        seeing = engine.with_images(plan.images) if plan.images else engine
        trained = self._is_trained(request, policy)
        with self._reserved(sampling.max_tokens * request.n):
            try:
                results = (
                    [await seeing.generate(prompt, sampling)]  # without a task of its own
                    if request.n == 1
                    else await asyncio.gather(
                        *(seeing.generate(prompt, sampling) for _ in range(request.n))
                    )
                )
            except ValueError as error:
                if request.prompt is None:
                    raise
                # Only the engine knows which ids its model has.
                raise BadRequest(str(error), param="token_ids") from error
            choices = [
                self._choice(request, policy, plan, each, start, trained, history, alone)
                for each in results
            ]
        self._made[id] = tuple(choices)
        return ModelAnswer(id, created, policy, engine.version, prompt, self._made[id])

    async def _tokens_left(self, replies: int) -> int:
        """Tokens of the budget that each of that many replies may have. If running requests may use up the rest, this waits for
        one of them to end."""
        while (left := self.rules.budget.tokens - self._tokens - self._under_way) < replies:
            if not self._under_way:
                return 0
            await self._one_ended.wait()
        return left // replies

    @contextlib.contextmanager
    def _reserved(self, tokens: int) -> Iterator[None]:
        """Reserve that many tokens of the budget for the requests of the block."""
        self._under_way += tokens
        try:
            yield
        finally:
            self._under_way -= tokens
            ended, self._one_ended = self._one_ended, asyncio.Event()
            ended.set()

    def _start(self, request: ModelRequest, policy: str) -> str:
        """The forced beginning of the reply, so that it calls a tool."""
        if request.tool_choice in ("auto", "none"):
            return ""
        name = "" if request.tool_choice == "required" else request.tool_choice
        return forced_start(self.formats[policy].tool_style, name)

    def _prompt(self, request: ModelRequest, history: History, start: str) -> PromptPlan:
        if request.prompt is not None:
            return PromptPlan(request.prompt, "tokens")
        plan = self._plan(request, history)
        self.outcomes[plan.outcome] += 1
        if not start:
            return plan
        with _refused("tool_choice"):
            begun = history.engine.tokenizer.encode(start)
        return replace(plan, tokens=np.concatenate([plan.tokens, begun]))

    def _plan(self, request: ModelRequest, history: History) -> PromptPlan:
        with _refused("messages"):
            plan = history.plan(request.messages, request.tools)
            parent = plan.parent
            known, seen = (parent.end, parent.images) if parent is not None else (0, ())
            if not plan.files:
                return replace(plan, images=seen)
            engine = self.engines[self.policy_of(request.model)]
            fresh, images = engine.expand_images(plan.tokens[known:], plan.files)
            tokens = np.concatenate([plan.tokens[:known], fresh])
            return replace(plan, tokens=tokens, images=(*seen, *(i.moved(known) for i in images)))

    def _sampling(
        self, request: ModelRequest, engine: PolicyEngine, prompt: int, left: int
    ) -> Sampling:
        own = engine.sampling
        room = engine.context_length - prompt
        if prompt < 1:
            raise BadRequest("the prompt is empty", param="messages")
        if room < 1:
            raise ContextExceeded(prompt, engine.context_length)
        wanted = [own.max_tokens, room, left]
        if request.max_tokens is not None:
            wanted.append(request.max_tokens)
        with _refused("stop"):
            stops = [tuple(engine.tokenizer.encode(text).tolist()) for text in request.stop]
        chosen: dict[str, Any] = {
            name: value for name, value in request.sampling.items() if name in self.rules.deviations
        }
        return replace(
            own,
            max_tokens=min(wanted),
            stop_sequences=(*own.stop_sequences, *stops),
            stop_token_ids=(*own.stop_token_ids, *request.stop_token_ids),
            **chosen,
        )

    def _is_trained(self, request: ModelRequest, policy: str) -> bool:
        """Not a title or a summary: a request without tools of an agent that has shown some."""
        self._has_tools |= bool(request.tools)
        auxiliary = self._has_tools and not request.tools and request.prompt is None
        self.counts["auxiliary"] += auxiliary
        rules = self.rules
        if rules.trained is not None and policy not in rules.trained:
            return False
        return rules.train_auxiliary or not auxiliary

    def _choice(
        self,
        request: ModelRequest,
        policy: str,
        plan: PromptPlan,
        result: GenerateResult,
        start: str,
        trained: bool,
        history: History,
        alone: bool,
    ) -> Choice:
        engine, form = self.engines[policy], self.formats[policy]
        result, text, stopped_by = _cut(engine, result, request.stop, form.ends)
        call = self.graph.add(policy, plan.tokens, result, trained, plan.parent, alone, plan.images)
        self._tokens += len(result.tokens)
        if trained:
            self.completions.append(engine.completion(result))
        style = form.tool_style if request.tools and request.tool_choice != "none" else ""
        reply = parse_reply(start + text, style, form.reasons, self._ids)
        if request.prompt is None:
            history.record(request.messages, request.tools, reply, call, start, bool(stopped_by))
        cut_short = result.finish_reason == "length" and not stopped_by
        finish: Finish = "length" if cut_short else "stop"
        return Choice(reply, "tool_calls" if reply.tool_calls else finish, call, stopped_by)


@contextlib.contextmanager
def _refused(param: str) -> Iterator[None]:
    """What the template or the tokenizer refuses is the fault of the request, in the field ``param``."""
    try:
        yield
    except NotEncodable as error:
        raise BadRequest(str(error), param=error.param) from error
    except UserError as error:
        raise BadRequest(str(error), param=param) from error


def _retrieved(task: asyncio.Task[Any]) -> None:
    """An agent that has gone away does not ask for the error."""
    if not task.cancelled():
        task.exception()


def _cut(
    engine: PolicyEngine, result: GenerateResult, stops: Sequence[str], ends: Mapping[int, str]
) -> tuple[GenerateResult, str, str]:
    """The result up to the first of ``stops`` in its text, which a stop by token ids can miss; its text without the
    stop and the end token; the stop that was there, or ""."""
    decode = engine.tokenizer.decode

    def text_of(count: int) -> str:
        text = decode(result.tokens[:count], skip_special=False)
        end = ends.get(int(result.tokens[count - 1])) if count else None
        return text.removesuffix(end) if end else text

    text = text_of(len(result.tokens))
    places = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if not places:
        return result, text, ""
    at, stop = min(places)
    low, high = 1, len(result.tokens)
    while low < high:
        middle = (low + high) // 2
        if stop in text_of(middle):
            high = middle
        else:
            low = middle + 1
    shorter = replace(
        result,
        tokens=result.tokens[:low],
        logprobs=result.logprobs[:low],
        versions=result.versions[:low],
        finish_reason="stop",
    )
    return shorter, text[:at], stop
