"""The dry call: one episode of a run's workflow with made-up completions, and one call of its
reward, in a separate process, so that this code cannot stop or crash the launcher.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import RunConfig, ServedModel
from astraflow_core.errors import AstraFlowError, PreflightError, UserError, WorkflowError
from astraflow_core.types import GenerateRequest, GenerateResult, Images, Trajectory, TrajectoryView
from astraflow_engine_host.failures import describe
from astraflow_runtime.config.named_rewards import (
    HOW,
    columns_of_policy,
    missing_rewards,
    named_rewards_of_policy,
)
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.episodes.dry_notes import ASYNC, NOT_CALLED
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
from astraflow_wire.experts.layers import ExpertLayers
from astraflow_wire.images.model import ImageModel
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

    def __init__(
        self, policy: str, model: Path, end: tuple[int, ...], engine: str, scores: bool
    ) -> None:
        self.policy, self._end = policy, end[:1]
        self._engine, self._scores = engine, scores
        described = json.loads((model / "config.json").read_bytes())
        inner = described.get("text_config") or described
        self.context_length = int(inner.get("max_position_embeddings") or _FAR)
        self.asked = 0
        self.experts: ExpertLayers | None = None

    async def available(self) -> None:
        """Available at once."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Return a few tokens of the prompt."""
        self.asked += 1
        room = min(request.sampling.max_tokens, _TOKENS)
        tokens = np.array([*request.prompt[: _TOKENS - 1], *self._end][-room:], np.int32)
        logprobs, versions = np.full(len(tokens), -1.0, np.float32), np.zeros(len(tokens), np.int32)
        routed = None
        if request.routing and self.experts is not None:
            first = np.arange(self.experts.top_k, dtype=self.experts.dtype)
            read = len(request.prompt) + len(tokens) - 1
            routed = np.broadcast_to(first, (read, self.experts.layers, len(first)))
        return GenerateResult(request.id, tokens, logprobs, versions, "stop", routed)

    async def score(
        self, tokens: npt.NDArray[np.int32], images: Images = ()
    ) -> npt.NDArray[np.float32]:
        """The same for each token. :class:`UserError` if the engine of the config gives no log-probs."""
        if not self._scores:
            raise UserError(
                f"the workflow asks {self.policy!r} for the log-probs of tokens, which needs engine capability score; "
                f"{self._engine!r} lacks it: name another engine for {self.policy!r}"
            )
        return np.where(np.arange(len(tokens)) > 0, np.float32(-1), np.float32(0))


class _InTurn:
    """Calls a reward that may block after the episode, in the main thread, as reward workers do."""

    def __init__(
        self, name: str, reward: Any, at: Callable[[str], None], policies: list[str]
    ) -> None:
        self.name, self._reward, self._at, self._policies = name, reward, at, policies
        self._view: TrajectoryView | None = None
        self.metrics: dict[str, float] = {}

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
        self.metrics = verdict.metrics


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
    recorded = {name for name, table in config.policies.items() if table.router_replay}
    pictured = {name for name, table in config.policies.items() if table.images}
    engines = {
        name: _handle(name, served, catalog, name in recorded, name in pictured)
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
    metrics = scorer.metrics if isinstance(scorer, _InTurn) else {}
    _check_wanted(config, catalog, played.outcomes, metrics)
    if scorer is None or scorer.called or not any(played.outcomes):
        return ""
    return (
        f"workflow {workflow.name!r} rewards its episodes itself, so that reward {scorer.name!r} {NOT_CALLED} in a dry call; "
        "remove [reward], or set the workflow's key that leaves rewards to the run, if it has one"
    )


def _check_wanted(
    config: RunConfig,
    catalog: Catalog,
    outcomes: list[Trajectory | None],
    metrics: dict[str, float],
) -> None:
    """Reject an episode without a reward that the algorithm of one of its policies reads by name, or a column that it
    needs; ``metrics``: those of a reward that was called afterwards."""
    for trajectory in (each for each in outcomes if each is not None):
        found = metrics | trajectory.metrics
        for policy in dict.fromkeys(sequence.policy for sequence in trajectory.sequences):
            names = named_rewards_of_policy(config, catalog, policy)
            if missing := missing_rewards(names, policy, found):
                use, known = config.policies[policy].algorithm.use, ", ".join(map(repr, found))
                raise DryCallFailed(
                    f"policies.{policy}.algorithm: {use!r} reads the named reward {missing[0]!r}, and an episode has "
                    f"{known or 'none'}; {HOW}",
                    "refused",
                )
            own = [sequence for sequence in trajectory.sequences if sequence.policy == policy]
            for name in columns_of_policy(config, catalog, policy):
                if any(getattr(sequence, name) is None for sequence in own):
                    use = config.policies[policy].algorithm.use
                    raise DryCallFailed(
                        f"policies.{policy}.algorithm: {use!r} with these keys needs {name} of each sequence, and those of "
                        "workflow and reward have none; use a workflow that gives them (docs/distillation.md)",
                        "refused",
                    )


def _used(table: Any) -> str:
    return table.use if table is not None else ""


def _handle(
    name: str, served: ServedModel, catalog: Catalog, recorded: bool, pictured: bool
) -> PolicyHandle:
    model, engine = Path(served.model), served.engine.use
    tokenizer = FolderTokenizer(model)
    scores = "score" in catalog.flags(Kind.ENGINE, engine)
    engines = MadeUp(name, model, tokenizer.eos_token_ids, engine, scores)
    if recorded:
        engines.experts = ExpertLayers.of(model)
    images = ImageModel.of(model) if pictured else None
    return PolicyHandle(cast(Replicas, engines), tokenizer, served.frozen, engines.experts, images)


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
