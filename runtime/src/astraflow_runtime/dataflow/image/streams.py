"""Streams of an image: the buffer, the batches and the figures of each policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from astraflow_core.types import GroupSummary, Prompt
from astraflow_runtime.dataflow.image.attributes import put, taken
from astraflow_runtime.dataflow.image.policies import as_json, restore_chain, save_chain
from astraflow_runtime.dataflow.image.rows import RestoredRows, SavedRows
from astraflow_runtime.dataflow.image.schema import (
    BufferImage,
    MeansImage,
    ShareImage,
    SourceImage,
    StatisticsImage,
    StreamImage,
    SumsImage,
    WatchImage,
)
from astraflow_runtime.dataflow.rows.rows import GroupRewards, PolicyShare
from astraflow_runtime.dataflow.rows.statistics import group_statistics
from astraflow_runtime.dataflow.rows.step_metrics import StepStatistics
from astraflow_runtime.dataflow.rows.stream import PolicyStream


def save_stream(stream: PolicyStream) -> Callable[[SavedRows], StreamImage]:
    """A stream as it is now; the function that is returned makes the rest of the image, in any thread."""
    chain, states = save_chain(stream.chain)
    statistics, pending = _statistics(stream.statistics)
    image = taken(
        StreamImage,
        stream,
        chain=chain,
        buffer=BufferImage([], []),
        row_source=taken(SourceImage, stream.row_source, waiting=[]),
        seen=dict(stream.staleness.seen),
        watch=taken(WatchImage, stream.watch),
        statistics=statistics,
        episode_means=taken(MeansImage, stream.episode_means),
        outstanding=None,
        unreleased=[],
        to_repeat=[],
        # Without a data policy that chooses, the journal does not have it, and it follows from the buffer.
        starved=stream.starved and stream.chain.chooses,
    )
    fresh, kept = list(stream.buffer._fresh), list(stream.buffer.kept)
    waiting, outstanding = list(stream.row_source.waiting), stream.outstanding
    unreleased, to_repeat = list(stream._unreleased), list(stream._to_repeat)

    def finish(rows: SavedRows) -> StreamImage:
        chain.states = [as_json(state) for state in states]
        statistics.pending = [_share(share) for share in pending]
        image.buffer.fresh = [(list(key), rows.row(row)) for key, _, row in fresh]
        image.buffer.kept = rows.all(kept)
        image.row_source.waiting = rows.all(waiting)
        image.outstanding = rows.batch(outstanding) if outstanding else None
        image.unreleased = [rows.batch(batch) for batch in unreleased]
        image.to_repeat = [rows.batch(batch) for batch in to_repeat]
        return image

    return finish


def restore_stream(stream: PolicyStream, image: StreamImage, rows: RestoredRows) -> None:
    """Be what was saved."""
    put(
        stream,
        image,
        *("chain", "buffer", "row_source", "seen", "watch", "statistics", "episode_means"),
        *("outstanding", "unreleased", "to_repeat"),
    )
    restore_chain(stream.chain, image.chain)
    stream.buffer.arrange(keep_served=stream.chain.wants_kept)
    places = rows.all(place for _, place in image.buffer.fresh)
    stream.buffer._fresh = [
        (tuple(key), row.item.arrival, row)
        for (key, _), row in zip(image.buffer.fresh, places, strict=True)
    ]
    stream.buffer.kept = rows.all(image.buffer.kept)
    put(stream.row_source, image.row_source, "waiting")
    stream.row_source.waiting = rows.all(image.row_source.waiting)
    stream.staleness.seen.update(image.seen)
    put(stream.watch, image.watch)
    put(stream.episode_means, image.episode_means)
    _restore_statistics(stream.statistics, image.statistics)
    stream.outstanding = rows.batch(image.outstanding) if image.outstanding else None
    stream._unreleased.extend(rows.batch(batch) for batch in image.unreleased)
    stream._to_repeat.extend(rows.batch(batch) for batch in image.to_repeat)


def _statistics(statistics: StepStatistics) -> tuple[StatisticsImage, list[PolicyShare]]:
    sums = statistics._sums
    saved = taken(SumsImage, sums, episodes=sums.episodes.tolist(), passed=sums.passed.tolist())
    image = taken(StatisticsImage, statistics, pending=[], sums=saved)
    return image, list(statistics._pending)


def _restore_statistics(statistics: StepStatistics, image: StatisticsImage) -> None:
    put(statistics, image, "pending", "sums")
    put(statistics._sums, image.sums, "episodes", "passed")
    statistics._sums.episodes = np.array(image.sums.episodes)
    statistics._sums.passed = np.array(image.sums.passed)
    statistics._pending = [_restored(share) for share in image.pending]


def _share(share: PolicyShare) -> ShareImage:
    source = share.summary.prompt.data.get("source")
    return ShareImage(
        source=source if isinstance(source, str) else None,
        trajectories=share.rewards.trajectories,
        trajectory=share.rewards.trajectory.tolist(),
        rewards=share.summary.rewards.tolist(),
        trained=share.summary.trained.tolist(),
        truncated=share.summary.truncated.tolist(),
    )


def _restored(image: ShareImage) -> PolicyShare:
    """A share with what :class:`StepStatistics` reads of it; everything else was used when the group came."""
    rewards, trained = np.array(image.rewards), np.array(image.trained, dtype=np.int32)
    count = len(rewards)
    nothing = np.zeros(count, dtype=np.int32)
    summary = GroupSummary(
        policy="",
        prompt=Prompt("", {} if image.source is None else {"source": image.source}),
        rewards=rewards,
        lengths=nothing,
        trained=trained,
        min_versions=nothing,
        truncated=np.array(image.truncated, dtype=np.bool_),
        version=0,
    )
    siblings = GroupRewards(
        image.trajectories,
        np.arange(count),
        np.array(image.trajectory, dtype=np.int64),
        rewards,
        np.zeros(count, dtype=np.bool_),
        trained,
    )
    return PolicyShare(tuple(range(count)), summary, group_statistics(rewards), siblings)
