"""Scores stored rollouts with a reward, as a RaaS does, and compares."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w

from astraflow_contrib_rollouts.progress import ScoringProgress
from astraflow_core.config.load import LoadedConfig
from astraflow_core.errors import AstraFlowError, ConfigError, UserError, WorkflowError
from astraflow_core.installed.provenance import read_plugins
from astraflow_core.types import Completion, Prompt, RewardReport, TrajectoryView
from astraflow_engine_host.failures import describe
from astraflow_runtime.cli.run_directory import read_config
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.launch.planning.plugins_file import write_plugins
from astraflow_runtime.launch.planning.prepare import described_plugins
from astraflow_runtime.raas.episodes.workflows import build_scorer
from astraflow_runtime.raas.rewards.pool import RewardPool
from astraflow_runtime.raas.rewards.scoring import LoopScorer, Scorer, as_number, validated
from astraflow_runtime.raas.user_objects import FILE, UserObjects
from astraflow_runtime.rollouts.filters import Filter
from astraflow_runtime.rollouts.reader import LoadedTrajectory, RolloutReader
from astraflow_wire.host.private_folder import PrivateFolder, remove_orphans
from astraflow_wire.http.auth import new_token

NAME = "raas-0"
"""The reward is seeded as that of a run's first RaaS."""
AT_ONCE = 64
"""Rollouts that are held and scored at the same time."""
_PREFIX = "astraflow-recompute-"


@dataclass(frozen=True, slots=True)
class RescoredRollout:
    """A rollout with its ``old`` and ``new`` rewards by policy and the new ``metrics``, or the ``error`` of the reward or of
    the record that cannot be read."""

    group: str
    index: int
    prompt_id: str
    old: dict[str, float]
    new: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rescored:
    """All rollouts that were scored by the ``reward``; ``without_text``: those that could not be."""

    reward: dict[str, Any]
    rollouts: list[RescoredRollout]
    without_text: int

    @property
    def errors(self) -> list[RescoredRollout]:
        """The rollouts on which the reward failed."""
        return [each for each in self.rollouts if each.error]

    def most_moved(self, count: int) -> list[tuple[RescoredRollout, str, float, float]]:
        """Rollout, policy, old and new reward where these differ most."""
        found = [
            (each, policy, each.old[policy], new)
            for each in self.rollouts
            for policy, new in each.new.items()
            if new != each.old[policy]
        ]
        return sorted(found, key=lambda each: -abs(each[3] - each[2]))[:count]

    def document(self) -> dict[str, Any]:
        """The result as JSON, for programs."""
        policies = dict.fromkeys(policy for each in self.rollouts for policy in each.new)
        return {
            "reward": self.reward,
            "summary": {
                "policies": {policy: self._compared(policy) for policy in policies},
                "failed": len(self.errors),
                "without_text": self.without_text,
            },
            "rollouts": [asdict(each) for each in self.rollouts],
        }

    def _compared(self, policy: str) -> dict[str, Any]:
        pairs = [
            (each.old[policy], each.new[policy]) for each in self.rollouts if policy in each.new
        ]
        old, new = np.array(pairs, np.float64).T
        return {
            "rollouts": len(pairs),
            "old_mean": float(old.mean()),
            "new_mean": float(new.mean()),
            "equal": float((old == new).mean()),
            "correlation": correlation(old, new),
            "rank_correlation": correlation(_ranks(old), _ranks(new)),
        }


Values = npt.NDArray[np.float64]


def correlation(one: Values, other: Values) -> float | None:
    """Pearson's, of float64 ``[N]`` each; ``None`` where one of them does not vary."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(values: Values) -> Values:
    """The rank of each value; equal ones have the mean of theirs, as in Spearman's correlation."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def rescore(run: Path, override: str, where: Filter) -> Rescored:
    """Score what fits ``where`` with the reward that ``override``, as ``--set`` of a run takes it, puts into the run's
    configuration. :class:`UserError` if it cannot be built, or asks for engines."""
    reader = RolloutReader(run)
    raw = {key: table for key, table in read_config(run).items() if key != "reward"}
    parent = Path(tempfile.gettempdir())
    remove_orphans(parent, _PREFIX)
    with closing(PrivateFolder(parent, _PREFIX)) as folder:
        # As the run had it, but for the reward, of which no key may stay.
        own = folder.path / "config.toml"
        own.write_text(tomli_w.dumps(raw), encoding="utf-8")
        write_plugins(folder.path, read_plugins(run))
        try:
            loaded = load_config(own, [override], workflow_given=(run / FILE).exists())
        except ConfigError as error:
            raise ConfigError(error.problems, "--reward") from error
        return asyncio.run(_rescore(reader, loaded, where, folder.path))


async def _rescore(
    reader: RolloutReader, loaded: LoadedConfig, where: Filter, folder: Path
) -> Rescored:
    config = loaded.config
    assert config.reward is not None
    write_plugins(folder, described_plugins(loaded))
    (folder / "state" / NAME).mkdir(parents=True)
    scorer = _built(loaded, folder)
    if isinstance(scorer, LoopScorer) and scorer.asks_engines:
        raise UserError(
            f"the reward {scorer.name!r} asks engines, which are not started for this; recompute with a reward that scores "
            "on its own"
        )
    if isinstance(scorer, RewardPool):
        await scorer.start()
    entries = [entry for entry in reader.entries(where) if entry.index >= 0]
    progress = ScoringProgress(len(entries))
    telling = asyncio.create_task(progress.tell())
    try:
        found: list[RescoredRollout] = []
        without_text = 0
        waiting: list[LoadedTrajectory] = []
        for entry in entries:
            try:
                trajectory = reader.load(entry)
            except UserError as error:  # the record is damaged; others may not be
                place = (entry.group, entry.index, entry.prompt_id, entry.rewards)
                found.append(RescoredRollout(*place, error=str(error)))
                continue
            if trajectory.stored.completions is None:
                without_text += 1
                continue
            waiting.append(trajectory)
            if len(waiting) == AT_ONCE:
                found += await _scored(scorer, reader, waiting, progress)
                waiting = []
        found += await _scored(scorer, reader, waiting, progress)
    finally:
        telling.cancel()
        if isinstance(scorer, RewardPool):
            await scorer.close()
    if not found and not without_text:
        raise UserError(f"no rollout with a trajectory in {reader.folder} fits the filter")
    return Rescored(config.reward.model_dump(), found, without_text)


def _built(loaded: LoadedConfig, folder: Path) -> Scorer:
    assert loaded.config.reward is not None
    try:
        scorer = build_scorer(
            loaded.config, loaded.catalog, folder, NAME, new_token(), UserObjects()
        )
    except AstraFlowError:
        raise
    except Exception as error:
        raise UserError(
            f"reward {loaded.config.reward.use!r} cannot be built: {describe(error)}; a reward is a function of one argument "
            "named 'view', or a class that is built as (config, context) and has the method score(view)"
        ) from error
    assert scorer is not None
    return scorer


async def _scored(
    scorer: Scorer,
    reader: RolloutReader,
    trajectories: list[LoadedTrajectory],
    progress: ScoringProgress,
) -> list[RescoredRollout]:
    async def one(trajectory: LoadedTrajectory) -> RescoredRollout:
        with progress.scoring(f"{trajectory.entry.group}/{trajectory.entry.index}"):
            return await _score(scorer, reader, trajectory)

    return list(await asyncio.gather(*map(one, trajectories)))


async def _score(
    scorer: Scorer, reader: RolloutReader, trajectory: LoadedTrajectory
) -> RescoredRollout:
    entry, stored = trajectory.entry, trajectory.stored
    record = reader.group(entry.number).record
    completions = tuple(
        Completion(each.policy, each.text, each.tokens, each.finish_reason)
        for each in stored.completions or ()
    )
    view = TrajectoryView(Prompt(record.prompt_id, record.prompt_data), completions)
    place = (entry.group, entry.index, record.prompt_id, stored.rewards)
    try:
        value = await scorer.score(view)
        rewards = validated(scorer.name, value, list(stored.rewards), record.prompt_id)
    except WorkflowError as error:
        return RescoredRollout(*place, error=str(error))
    except Exception as error:  # noqa: BLE001 - of the reward: reported with the rollout, and by the exit code
        return RescoredRollout(*place, error=describe(error))
    metrics = as_number(value.metrics) if isinstance(value, RewardReport) else {}
    return RescoredRollout(*place, rewards, metrics)
