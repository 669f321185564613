"""What an image holds. Fields have the names of the attributes that they are made from."""

from __future__ import annotations

from typing import Any

import msgspec

from astraflow_runtime.dataflow.fleet.balance import TrainerWindow, Work
from astraflow_runtime.dataflow.journal.entries import BodyLocation
from astraflow_runtime.dataflow.policies.pipeline import ShadowCounts
from astraflow_runtime.dataflow.progress import RunState
from astraflow_runtime.dataflow.row_source import SourcedCounts
from astraflow_runtime.dataflow.rows.step_metrics import StepFigures
from astraflow_runtime.dataflow.rows.stream import RowCounts
from astraflow_runtime.dataflow.tasks.scores import PromptScore
from astraflow_wire.groups import GroupHeader
from astraflow_wire.messages import AnnouncementMessage, PolicySwapped
from astraflow_wire.policy_status import RecoveryStatus


class GroupImage(msgspec.Struct, array_like=True):
    """A group with a row that may still be served, or a part of one; ``trained``: policy → trained tokens of each of its
    sequences."""

    header: GroupHeader
    body: BodyLocation
    trained: dict[str, list[int]] = {}


class RowImage(msgspec.Struct, array_like=True):
    """Sequence ``index`` of the group at place ``of``, number ``place`` of those of its policy."""

    of: int
    index: int
    place: int
    arrival: int
    times_served: int
    group: int
    trajectory: int


class LeaseImage(msgspec.Struct, array_like=True):
    """A lease; a restart extends it."""

    raas: str
    since: float
    limit: float
    newest: dict[str, int]


class TaskImage(msgspec.Struct):
    """A task that has not ended; ``parts``: places of groups."""

    id: str
    position: int
    group_size: int
    eval_set: str
    pinned: dict[str, int]
    attempts: int
    last_error: str
    lease: LeaseImage | None
    second: LeaseImage | None
    sequences: dict[str, float]
    parts: list[int]


class TableImage(msgspec.Struct):
    """A table of tasks; ``queue`` and ``twice``: ids. ``codes``, ``holders`` and ``names`` record how tasks ended."""

    next: int
    tasks: list[TaskImage]
    queue: list[str]
    twice: list[str]
    in_flight: dict[str, float]
    leased_again: int
    second_won: int
    codes: bytes
    holders: bytes
    names: list[str]
    why_revoked: dict[str, str]
    outcomes: dict[str, int]
    set_aside: list[dict[str, str]]


class BatchImage(msgspec.Struct):
    """A served batch; ``rows`` and ``sourced``: places of rows."""

    id: str
    version: int
    rows: list[int]
    first_served: int
    asked: int
    again: bool
    source: str
    source_version: int
    sourced: list[int]


class ShareImage(msgspec.Struct):
    """A group whose figures are not added up yet."""

    source: str | None
    trajectories: int
    trajectory: list[int]
    rewards: list[float]
    trained: list[int]
    truncated: list[bool]


class SumsImage(msgspec.Struct):
    """The figures of the groups since the last update."""

    groups: int
    compared: int
    equal: int
    sequences: int
    mean: float
    squares: float
    completions: int
    tokens: int
    longest: int
    truncated: int
    episodes: list[float]
    passed: list[float]


class StatisticsImage(msgspec.Struct):
    """Statistics of a step."""

    pending: list[ShareImage]
    sums: SumsImage
    sources: dict[str, int]
    means: float
    recent: list[float]
    reward: float | None
    last: StepFigures


class MeansImage(msgspec.Struct):
    """Means of the metrics of episodes."""

    names: dict[str, None]
    complaint: str
    episodes: int
    last: dict[str, dict[str, float]]


class WatchImage(msgspec.Struct):
    """What was seen of groups that teach nothing."""

    equal: int
    fruitless: int
    lowest: float
    highest: float
    reasons: dict[str, int]
    told_equal: bool
    told_fruitless: bool
    told_different: bool


class ChainImage(msgspec.Struct):
    """A list of data policies; ``states``: JSON of each that has a state."""

    shadows: dict[str, ShadowCounts]
    refused: dict[str, int]
    decisions: list[tuple[str, str, str, int]]
    states: list[str | None]


class BufferImage(msgspec.Struct):
    """``fresh``: the key and the place of each row; ``kept``: places."""

    fresh: list[tuple[list[float], int]]
    kept: list[int]


class SourceImage(msgspec.Struct):
    """Rows of another policy; ``waiting``: places of rows."""

    waiting: list[int]
    counts: SourcedCounts
    underfilled: bool


class StreamImage(msgspec.Struct):
    """The stream of a policy; ``seen``: rows served, by staleness."""

    chain: ChainImage
    buffer: BufferImage
    row_source: SourceImage
    seen: dict[int, int]
    watch: WatchImage
    statistics: StatisticsImage
    episode_means: MeansImage
    outstanding: BatchImage | None
    unreleased: list[BatchImage]
    to_repeat: list[BatchImage]
    starved: bool
    rows: RowCounts
    reasons: dict[str, int]
    groups_accepted: int
    updates: int
    released: int
    last_acknowledged: str
    trainer_is_new: bool
    per_trajectory: float
    observed: bool
    arrivals: int
    trained_reward: float | None
    tokens_trained: int
    tokens_consumed: int


class ScoreImage(msgspec.Struct):
    """The scores of an evaluation set."""

    k: int
    prompts: dict[str, list[PromptScore]]
    n: int
    failed: int
    last_error: str


class EvaluationImage(msgspec.Struct):
    """A running or waiting evaluation. A restarted dataflow chooses its host anew."""

    versions: dict[str, int]
    due_at: float
    scores: dict[str, ScoreImage]
    started_at: float | None


class EvaluationsImage(msgspec.Struct):
    """All evaluations."""

    passed: int
    evaluated: dict[str, int]
    pending: list[EvaluationImage]
    active: EvaluationImage | None
    history: list[dict[str, Any]]


class RaasImage(msgspec.Struct):
    """A RaaS as the journal knows it: what it serves it says again."""

    name: str
    pid: int
    host: str
    capacity: int
    floor: dict[str, int]
    origin: str
    start: int
    incarnation: int
    registered_at: float
    gone: str
    draining_since: float | None
    failures: int
    any_success: bool
    set_aside: str
    groups: int
    group_s: float | None
    recorded_idle_s: float
    recorded_tokens: float | None


class TrainerImage(msgspec.Struct):
    """A trainer as the journal knows it."""

    pid: int
    host: str
    registered: bool
    incarnation: int
    registered_at: float
    recorded_asked: float | None
    recorded_waited_s: float
    left: bool
    metrics: dict[str, float]
    recoveries: list[RecoveryStatus]
    steps_done: int
    last_step: float


class VersionsImage(msgspec.Struct):
    """Announced versions; ``known``: those that may be needed."""

    known: dict[str, dict[int, AnnouncementMessage]]
    newest: dict[str, int]
    withdrawn: dict[str, int]
    digests: dict[str, dict[int, str]]
    made: dict[str, dict[int, int]]


class ClockImage(msgspec.Struct):
    """The clock of a trainer."""

    window: TrainerWindow
    last_step: float | None
    waited_s: float
    consumed: int
    stale_rows: int
    version: int
    produced: int
    accepted: int
    done: bool


class BalanceImage(msgspec.Struct):
    """The balance of trainers and RaaS; ``rule``: JSON of the state of the data policy, if it has one."""

    work: dict[str, Work]
    reports: list[dict[str, Any]]
    count: int
    clocks: dict[str, ClockImage]
    work_began: float
    idle: dict[str, float]
    rule: str | None


class SwapImage(msgspec.Struct):
    """A data policy that was swapped: its tables, the newest last, and the number of the swap that built it."""

    place: str
    name: str
    tables: list[dict[str, Any]]
    number: int


class AdmissionImage(msgspec.Struct):
    """The admission of prompts."""

    chain: ChainImage
    position: int
    forced: int
    refused_in_a_row: int
    quarantined: dict[str, str]


class RunImage(msgspec.Struct):
    """The run as a whole."""

    state: RunState
    reason: str
    since: float
    rejected: dict[str, int]
    swaps: list[dict[str, Any]]
    swapped: list[SwapImage]
    swaps_done: dict[str, PolicySwapped]
    added: int
    drained: int
    pool_done: list[str]
    lately: list[tuple[str, str]]
    environments: dict[str, int]
    overlap: dict[str, list[int]]
    next_trajectory: int


class StateImage(msgspec.Struct):
    """All state that the journal determines. Rows and tasks name groups and rows by their places in these lists."""

    groups: list[GroupImage]
    rows: list[RowImage]
    run: RunImage
    admission: AdmissionImage
    train: TableImage
    eval: TableImage
    streams: dict[str, StreamImage]
    evaluations: EvaluationsImage
    raas: list[RaasImage]
    recorded_total: float
    trainers: dict[str, TrainerImage]
    versions: VersionsImage
    balance: BalanceImage


class Image(msgspec.Struct):
    """The ``state`` after ``entries`` entries, which end at byte ``end`` of the log, ``at_s`` seconds into the run, when
    ``metrics.jsonl`` had ``lines`` lines. ``written_by``: version of astraflow-runtime and digest of the run's config;
    ``before``: digest of the log before ``end``."""

    written_by: str
    end: int
    entries: int
    at_s: float
    lines: int
    before: int
    state: StateImage
