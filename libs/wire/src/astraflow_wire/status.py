"""``GET /v1/status`` and ``/v1/waits`` of the dataflow, field by field. The dataflow builds these structs; the live view,
the summary, ``/metrics``, commands and documents read them. Fields that a newer dataflow adds are skipped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from astraflow_core.errors import WireError
from astraflow_wire.policy_status import PolicyStatus

T = TypeVar("T")
ENDED = ("finished", "stopped", "failed")


class TaskCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by outcome; ``admitted`` is the sum of the others."""

    admitted: int = 0
    """tasks ever made"""
    accepted: int = 0
    """tasks whose group a policy kept"""
    rejected: int = 0
    """tasks whose group no policy kept"""
    failed: int = 0
    """tasks that failed for good"""
    set_aside: int = 0
    """tasks given up after `run.task_attempts`"""
    running: int = 0
    """tasks under a lease"""
    queued: int = 0
    """tasks that wait for a RaaS"""
    lost: int = 0
    """tasks that nothing explains: 0"""


class TaskStatus(TaskCounts, frozen=True, kw_only=True):
    """Tasks of training."""

    duplicates: int = 0
    """pushes of a group that was there already"""
    late: int = 0
    """pushes of a task whose lease had ended"""
    refilled: int = 0
    """tasks that gave way to one for the rest of their group"""
    leased_again: int = 0
    """tasks that a second RaaS got as well (`run.second_leases`)"""
    second_won: int = 0
    """of these, those whose result came from the second one"""
    forced: int = 0
    """prompts admitted after a whole epoch of refusals"""


class GivenUpTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was set aside."""

    task: str = ""
    """its id"""
    prompt: str = ""
    """id of its prompt"""
    error: str = ""
    """what its last attempt ended with"""


class RaasStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One RaaS."""

    name: str
    """its name"""
    state: str = ""
    """`alive`, `suspect`, `gone` or `left`"""
    host: str = ""
    """host that it runs on"""
    pid: int = 0
    """its process there"""
    capacity: int = 0
    """episodes at once"""
    serving: dict[str, int] = {}
    """policy → version that it serves"""
    pins: dict[str, int] = {}
    """policy → version that it keeps for an evaluation"""
    running: int = 0
    """tasks that it holds"""
    running_eval: int = 0
    """evaluation tasks that it holds"""
    metrics: dict[str, float | None] = {}
    """what it last reported ([RenewLeases](#renewleases)); null: not finite"""
    heard_s: float = 0.0
    """seconds since its last message"""
    ready: bool = False
    """whether it may be given tasks: it has served what was newest when it came"""
    draining: bool = False
    """whether it was requested to leave: it gets no new task"""
    set_aside: str = ""
    """why it gets no new tasks after failing too many; empty if it does"""


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """RaaS requested, and requested to leave."""

    size: int = 0
    """RaaS that are there and stay"""
    added: int = 0
    """RaaS requested since the run began, beyond `raas.replicas`"""
    drained: int = 0
    """RaaS requested to leave since then"""
    reports: int = 0
    """reports of the balance so far"""


class PolicySwap(msgspec.Struct, frozen=True, kw_only=True):
    """A data policy that was swapped while the run went on."""

    number: int = 0
    """1 for the first of the run"""
    at: float = 0.0
    """when, in seconds since 1970"""
    author: str = ""
    """who made the change"""
    versions: dict[str, int] = {}
    """policy → newest version then"""
    place: str = ""
    """`prompts`, or the policy whose data it decides on"""
    name: str = ""
    """its name in that list"""
    table: dict[str, Any] = {}
    """what it is now, as a config has it"""
    rollback: bool = False
    """whether the previous one was restored"""


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a set for one policy; ``None`` if nothing came back."""

    avg: float | None = None
    """share of its samples that pass (avg@k), 0 to 1"""
    pass_: float | None = msgspec.field(default=None, name="pass")
    """chance that one of k samples passes (pass@k), 0 to 1"""
    mean_reward: float | None = None
    """mean reward"""


class SetResult(PolicyResult, frozen=True, kw_only=True):
    """Result of one evaluation set, means over the policies."""

    n: int = 0
    """prompts that gave a result"""
    k: int = 0
    """samples of each prompt"""
    failed: int = 0
    """prompts that gave none"""
    policies: dict[str, PolicyResult] = msgspec.field(default_factory=dict)
    """the same of each policy, if there are several"""
    last_error: str = ""
    """why the last prompt failed"""


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation that ended."""

    version: int = -1
    """the smallest of its versions"""
    versions: dict[str, int] = {}
    """policy → version that was evaluated"""
    sets: dict[str, SetResult] = {}
    """result of each set"""
    seconds: float = 0.0
    """how long it took"""

    @property
    def accuracy(self) -> float | None:
        """Mean of avg@k over the sets that gave one."""
        return _mean(entry.avg for entry in self.sets.values())

    def accuracy_of(self, policy: str) -> float | None:
        """The same for one policy."""
        if policy not in self.versions:
            return None
        return _mean(entry.policies.get(policy, entry).avg for entry in self.sets.values())


class SetOverlap(msgspec.Struct, frozen=True, kw_only=True):
    """What of an evaluation set was trained on."""

    trained_on: int = 0
    """how many of its prompts were rolled out for training, too"""
    prompts: int = 0
    """its prompts"""


class EvaluationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All evaluations of the run."""

    history: list[EvaluationResult] = []
    """those that ended, oldest first"""
    running: int | None = None
    """version of the evaluation that runs; null: none"""
    waiting: list[int] = []
    """versions of those that wait"""
    tasks: TaskCounts = TaskCounts()
    """evaluation tasks by state"""
    overlap: dict[str, SetOverlap] = {}
    """of each set"""


class BestVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The best evaluation, the first one of equals."""

    version: int = -1
    """the smallest of its versions"""
    versions: dict[str, int] = {}
    """policy → version"""
    avg: float = 0.0
    """mean of avg@k over its sets, 0 to 1"""


class SampleTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of an episode."""

    role: str = ""
    """as in [Turn](#turn)"""
    policy: str = ""
    """whose model read or wrote it"""
    text: str = ""
    """the text, cut"""


class GroupSample(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was rolled out lately."""

    prompt_id: str = ""
    """id of its prompt"""
    turns: list[SampleTurn] = []
    """turns of its first episode"""
    rewards: list[float] = []
    """rewards of its first sequences"""

    @property
    def said(self) -> str:
        """What was sampled last."""
        return next((turn.text for turn in self.turns[::-1] if turn.role == "assistant"), "")

    @property
    def asked(self) -> str:
        """What came before all that was sampled; without its text the name of the prompt."""
        first = self.turns[0] if self.turns else SampleTurn(role="assistant")
        return self.prompt_id if first.role == "assistant" else first.text


class WaitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One wait."""

    who: str
    """who waits"""
    for_whom: str = ""
    """the party that it waits for"""
    what: str = ""
    """for what"""
    since_s: float = 0.0
    """seconds that it has waited"""
    until_s: float = 0.0
    """seconds until its deadline"""

    def __str__(self) -> str:
        return f"{self.who} waits {self.since_s:.0f} s for {self.for_whom}: {self.what}"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    run: str = ""
    """name of the run"""
    state: str = "starting"
    """as in health"""
    reason: str = ""
    """why it is in that state"""
    users_mistake: bool = False
    """whether the run failed by a mistake that its user can fix: the launcher then ends with 2"""
    held_back: str = ""
    """why no new task is given out, such as a full disk; empty if nothing holds them back"""
    seed: int = 0
    """`run.seed`"""
    steps: int = 0
    """updates acknowledged by the slowest policy"""
    steps_total: int = 0
    """`run.steps`"""
    max_staleness: int = 0
    """`run.max_staleness`, in versions"""
    elapsed_s: float = 0.0
    """seconds since the dataflow began"""
    eta_s: float | None = None
    """seconds left as the last updates went; null while unknown"""
    policies: dict[str, PolicyStatus] = {}
    """each policy"""
    tasks: TaskStatus = TaskStatus()
    """tasks of training by state"""
    rejected: dict[str, int] = {}
    """groups that every policy rejected, by reason"""
    held_by: str = ""
    """the data policy that wants no more prompts for now; empty: none"""
    environment_failures: dict[str, int] = {}
    """attempts of tasks that ended since an environment failed, by kind"""
    quarantined: int = 0
    """prompts that are not taken again, since environments failed on them `run.task_attempts` times"""
    refused_prompts: dict[str, int] = {}
    """prompts not admitted, by data policy"""
    decisions: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    """by place (`prompts`, or a policy): data policy → point (`admit`, `accept`, `arrange`, `draw`, of a shadow \
`shadow_admit` …) → reason of a refusal, or `admitted`, `accepted`, `arranged`, `held back`, `drawn`, `waited` → how \
often"""
    admission_metrics: dict[str, float | None] = {}
    """metrics of the data policies under `[prompts] data`; null: not finite"""
    swaps: list[PolicySwap] = []
    """data policies that were swapped, the first one first"""
    set_aside: list[GivenUpTask] = []
    """the first 32 tasks that were given up"""
    epoch: int = 0
    """passes over the prompts"""
    cursor: int = 0
    """prompts taken since the run began"""
    raas: list[RaasStatus] = []
    """every RaaS that ever registered, in order of its first registration"""
    pool: PoolStatus = PoolStatus()
    """RaaS requested, and requested to leave"""
    eval: EvaluationStatus = EvaluationStatus()
    """evaluations"""
    best_version: BestVersion | None = None
    """`version`, `versions` and mean `avg` of the best evaluation; null: none yet"""
    tokens_generated: int = 0
    """tokens sampled by all RaaS"""
    tokens_trained: int = 0
    """tokens trained, of all policies"""
    max_staleness_seen: int = 0
    """highest staleness of a row in a batch, of all policies, in versions"""
    samples: list[GroupSample] = []
    """a few of the last groups"""
    invariants_ok: bool = True
    """whether both balances add up"""
    waits: list[WaitStatus] = []
    """as in waits"""

    @property
    def ended(self) -> bool:
        """Whether no update will be made any longer."""
        return self.state in ENDED

    @property
    def progress(self) -> tuple[object, ...]:
        """Changes whenever the run gets on."""
        updates = tuple(policy.updates for policy in self.policies.values())
        return self.state, updates, self.tasks, self.tokens_generated, len(self.eval.history)


def read_status(answer: object) -> Status:
    """The JSON of ``/v1/status``; :class:`WireError` naming a field of a wrong type."""
    return _read(answer, "/v1/status", Status)


def read_waits(answer: object) -> list[WaitStatus]:
    """The JSON of ``/v1/waits``; :class:`WireError` naming a field of a wrong type."""
    return _read(answer, "/v1/waits", list[WaitStatus])


def _read(answer: object, path: str, expected: type[T]) -> T:
    try:
        return msgspec.convert(answer, expected)
    except msgspec.ValidationError as error:
        raise WireError(
            f"the reply of the dataflow to GET {path} is malformed: {error}; check that both run the same version "
            "of AstraFlow"
        ) from error


def _mean(values: Iterable[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) / len(given) if given else None
