"""The dry call: one episode of a run's workflow with made-up completions, and one call of its
reward, in a process of its own, so that this code cannot stop or crash the launcher.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError, PreflightError, WorkflowError
from astraflow_core.types import GenerateRequest, GenerateResult, TrajectoryView
from astraflow_engine_host.failures import describe
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.episodes.dry_process import ASYNC, NOT_CALLED
from astraflow_runtime.raas.episodes.episodes import TaskFailed, TaskRunner
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.raas.episodes.workflows import build_workflow, check_engines_asked
from astraflow_runtime.raas.rewards.scoring import (
    NO_ENGINES,
    Engines,
    LoopScorer,
    build_reward,
    declares_blocking,
    validated,
)
from astraflow_runtime.raas.rewards.worker import pack, verdict_of
from astraflow_runtime.raas.user_objects import (
    UserObjects,
    checked_reward,
    is_async,
    load_user_objects,
    name_of,
    score_function,
)
from astraflow_wire.messages import Task, decode

NAME = "dry-call"
_TOKENS = 4
_FAR = 1 << 30
"""The context length assumed for a model that gives none."""


class DryCallFailed(Exception):
    """The text is a message for the user. ``state``: ``unsure`` if a made-up answer of a frozen
    engine may be the cause, ``refused`` if no answer can be, else ``failed``.
    """

    def __init__(self, text: str, state: str = "failed") -> None:
        self.state = state
        super().__init__(text)


class MadeUp:
    """A stand-in for the engines of a policy: each completion is the beginning of its prompt."""

    serving = 0
    stopped_s = 0.0

    def __init__(self, policy: str, model: Path, end: tuple[int, ...]) -> None:
        self.policy, self._end = policy, end[:1]
        described = json.loads((model / "config.json").read_bytes())
        inner = described.get("text_config") or described
        self.context_length = int(inner.get("max_position_embeddings") or _FAR)
        self.asked = 0

    async def available(self) -> None:
        """Available at once."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Return a few tokens of the prompt."""
        self.asked += 1
        room = min(request.sampling.max_tokens, _TOKENS)
        tokens = np.array([*request.prompt[: _TOKENS - 1], *self._end][-room:], np.int32)
        logprobs, versions = np.full(len(tokens), -1.0, np.float32), np.zeros(len(tokens), np.int32)
        return GenerateResult(request.id, tokens, logprobs, versions, "stop")


class _InTurn:
    """Calls a reward that may block after the episode, in the main thread, as reward workers do."""

    def __init__(
        self, name: str, reward: Any, at: Callable[[str], None], policies: list[str]
    ) -> None:
        self.name, self._reward, self._at, self._policies = name, reward, at, policies
        self._view: TrajectoryView | None = None

    @property
    def called(self) -> bool:
        """Whether the workflow left anything to reward."""
        return self._view is not None

    async def score(self, view: TrajectoryView, engines: Engines = NO_ENGINES) -> float:
        """None yet."""
        self._view = view
        return 0.0

    def call(self) -> None:
        """Call the reward, if the workflow left anything to reward."""
        if self._view is None:
            return
        self._at(f"reward {self.name!r}")
        prompt = self._view.prompt.id
        score, unimported = score_function(self._reward), list[ImportError]()

        def noted(view: TrajectoryView) -> Any:
            try:
                return score(view)
            except ImportError as error:
                unimported.append(error)
                raise

        verdict = verdict_of(noted, pack(self._view))
        if verdict.error:
            text = f"reward {self.name!r} on prompt {prompt!r}: {verdict.error}"
            raise DryCallFailed(text, "refused" if unimported else "failed")
        named = list(verdict.value) if isinstance(verdict.value, dict) else self._policies[:1]
        try:
            validated(self.name, verdict.value, named, prompt)
        except WorkflowError as error:
            raise DryCallFailed(str(error)) from error


class _OnLoop(LoopScorer):
    """Calls an async reward, and reports when it is called."""

    def __init__(self, name: str, reward: Any, at: Callable[[str], None]) -> None:
        super().__init__(name, reward)
        self._at = at
        self.called = False

    async def score(self, view: TrajectoryView, engines: Engines = NO_ENGINES) -> Any:
        """What the reward returned."""
        self.called = True
        self._at(f"{ASYNC} reward {self.name!r}")
        return await super().score(view, engines)


def perform(
    config: RunConfig, catalog: Catalog, directory: Path, task: bytes, at: Callable[[str], None]
) -> str:
    """Build workflow and reward and call them; ``at`` is called with the name of each before its
    call. Returns a note if the workflow left nothing to reward, else ''. Raises
    :class:`DryCallFailed`.
    """
    given = load_user_objects(directory)
    name = name_of(given.workflow) if given.workflow is not None else _used(config.workflow)
    at(f"workflow {name!r}")
    with _built("workflow", name):
        workflow = build_workflow(config, catalog, directory, NAME, "", given)
    scorer = _scorer(config, catalog, directory, given, at)
    at(f"workflow {workflow.name!r}")
    engines = {
        name: _handle(name, Path(served.model), served.frozen)
        for name, served in config.served.items()
    }
    runner = TaskRunner(NAME, workflow, scorer, engines)
    try:
        decoded = decode(task, Task)
        played = asyncio.run(runner.play(decoded))
        runner.body_of(decoded, played)
    except TaskFailed as failed:
        frozen = [handle.replicas for handle in engines.values() if handle.frozen]
        if any(cast(MadeUp, each).asked for each in frozen):
            raise DryCallFailed(str(failed), "unsure") from failed
        raise DryCallFailed(str(failed), "refused" if failed.mistake else "failed") from failed
    if isinstance(scorer, _InTurn):
        scorer.call()
    if scorer is None or scorer.called or not any(played.outcomes):
        return ""
    return (
        f"workflow {workflow.name!r} rewards its episodes itself, so that reward {scorer.name!r} {NOT_CALLED} in a dry call; "
        "remove [reward], or set the workflow's key that leaves rewards to the run, if it has one"
    )


def _used(table: Any) -> str:
    return table.use if table is not None else ""


def _handle(name: str, model: Path, frozen: bool) -> PolicyHandle:
    tokenizer = FolderTokenizer(model)
    engines = MadeUp(name, model, tokenizer.eos_token_ids)
    return PolicyHandle(cast(Replicas, engines), tokenizer, frozen)


def _scorer(
    config: RunConfig,
    catalog: Catalog,
    directory: Path,
    given: UserObjects,
    at: Callable[[str], None],
) -> _InTurn | _OnLoop | None:
    if given.reward is None and config.reward is None:
        return None
    name = name_of(given.reward) if given.reward is not None else _used(config.reward)
    at(f"reward {name!r}")
    with _built("reward", name):
        name, reward = build_reward(config, directory, NAME, "", given, catalog)
        checked_reward(name, reward)
    blocking = given.reward is None and declares_blocking(config, catalog)
    if is_async(reward) and not blocking:
        return _OnLoop(name, reward, at)
    check_engines_asked(name, reward)
    return _InTurn(name, reward, at, list(config.policies))


@contextmanager
def _built(kind: str, name: str) -> Iterator[None]:
    try:
        yield
    except AstraFlowError:
        raise
    except Exception as error:
        raise PreflightError(
            f"{kind}: {kind} {name!r} cannot be built: {describe(error)}"
        ) from error
