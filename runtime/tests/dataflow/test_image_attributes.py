"""No part of the state is forgotten by an image: each attribute is saved, or listed here with the reason why not."""

from __future__ import annotations

import pytest

from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.image import schema
from astraflow_runtime.dataflow.policies.remembering import attributes
from astraflow_runtime.dataflow.row_source import SourcedRows
from astraflow_runtime.dataflow.rows.rows import Row
from astraflow_runtime.dataflow.rows.step_metrics import _Sums
from astraflow_runtime.dataflow.rows.stream import ServedBatch
from astraflow_runtime.dataflow.tasks.evaluation import Evaluation
from astraflow_runtime.dataflow.tasks.partial_groups import PartialGroup
from astraflow_runtime.dataflow.tasks.queue import Lease, TaskRecord
from astraflow_runtime.dataflow.tasks.scores import SetScore

CONFIG = "of the config, or given when it is made"
ELSEWHERE = "in another part of the image"
DERIVED = "follows from what is saved"
AGAIN = "RaaS and trainers say it again, or it is found out again"
COUNTED = "counted since the process began, and not in the journal"


def _group(reason, *names):
    return dict.fromkeys(names, reason)


PARTS = {
    "state": (
        schema.StateImage,
        _group(CONFIG, "config", "clock", "group_size", "max_staleness", "signals", "limits")
        | _group(CONFIG, "rollouts", "records", "replaying")
        | _group(ELSEWHERE, "fleet", "failures", "overlap", "progress", "rejected", "swaps")
        | _group(AGAIN, "started_at", "last_progress", "samples", "recoveries"),
    ),
    "table": (
        schema.TableImage,
        _group(CONFIG, "_on_ended", "_prefix", "_lease_s", "_deadline_s", "_max_attempts")
        | _group(DERIVED, "_live", "_held", "_leased", "_ended")
        | _group(COUNTED, "duplicates", "late"),
    ),
    "task": (schema.TaskImage, _group(DERIVED, "prompt") | _group(AGAIN, "failed_on")),
    "lease": (schema.LeaseImage, _group(AGAIN, "expires")),
    "evaluations": (
        schema.EvaluationsImage,
        _group(CONFIG, "_sets", "tasks", "_every", "_samples", "_pass_threshold", "_policies"),
    ),
    "evaluation": (schema.EvaluationImage, _group(AGAIN, "host")),
    "score": (schema.ScoreImage, {}),
    "raas": (
        schema.RaasImage,
        _group(DERIVED, "health", "idle_s", "metrics", "counted_at", "last_heard")
        | _group(AGAIN, "caught_up", "serving", "seen", "waits", "acknowledged_versions", "sent_pins")
        | _group(AGAIN, "unconfirmed", "foreign", "discard", "sent_discard", "revoked", "sent_offer")
        | _group(AGAIN, "waiting_since", "figures_rejected", "_empty"),
    ),
    "fleet": (
        None,
        _group(CONFIG, "suspect_s", "_gone_s")
        | _group(ELSEWHERE, "_records", "recorded_total")
        | _group(DERIVED, "tokens_generated")
        | _group(AGAIN, "changed_at", "_slowest_s"),
    ),
    "trainer": (
        schema.TrainerImage,
        _group(CONFIG, "policy")
        | _group(DERIVED, "first_asked", "waited_s")
        | _group(AGAIN, "last_heard", "waiting_since", "waiting_until", "saw_end", "failed"),
    ),
    "versions": (schema.VersionsImage, _group(DERIVED, "first_vector")),
    "balance": (schema.BalanceImage, _group(CONFIG, "policies", "_first")),
    "clock": (schema.ClockImage, {}),
    "progress": (None, _group(ELSEWHERE, "state", "reason", "since") | _group(CONFIG, "began", "users_mistake")),
    "admission": (schema.AdmissionImage, _group(ELSEWHERE, "cursor")),
    "cursor": (
        None,
        _group(ELSEWHERE, "position")
        | _group(CONFIG, "_source", "_seed", "_shuffle", "_size")
        | _group(DERIVED, "_order", "_order_epoch"),
    ),
    "chain": (
        schema.ChainImage,
        _group(CONFIG, "_first", "_policies", "borrowing", "_draw", "_shadow_draws", "_arrange", "_admit")
        | _group(CONFIG, "_accept", "_key", "_follow", "_hold"),
    ),
    "stream": (schema.StreamImage, _group(CONFIG, "policy", "settings") | _group(ELSEWHERE, "staleness", "dropped")),
    "buffer": (schema.BufferImage, _group(CONFIG, "_key") | _group(DERIVED, "_keep_served")),
    "row_source": (schema.SourceImage, _group(CONFIG, "_chain", "_count", "_max_staleness")),
    "staleness": (None, _group(CONFIG, "limit") | _group(ELSEWHERE, "seen")),
    "watch": (schema.WatchImage, _group(CONFIG, "policy")),
    "statistics": (schema.StatisticsImage, _group(CONFIG, "_pass_threshold")),
    "sums": (schema.SumsImage, {}),
    "means": (schema.MeansImage, _group(CONFIG, "_policy")),
    "failures": (
        None,
        _group(ELSEWHERE, "_lately", "environments")
        | _group(CONFIG, "_fleet", "_limit", "_expected", "_most_environment", "_group_size"),
    ),
    "overlap": (None, _group(ELSEWHERE, "_met") | _group(CONFIG, "_sizes", "_sets_of")),
    "swapping": (
        None,
        _group(ELSEWHERE, "_tables", "_done", "numbers") | _group(CONFIG, "_state", "_build", "_named"),
    ),
    "pool": (None, _group(ELSEWHERE, "added", "drained", "_done") | _group(CONFIG, "_state")),
    "intake": (None, _group(ELSEWHERE, "next_trajectory") | _group(CONFIG, "_state")),
    "row": (schema.RowImage, _group(DERIVED, "item", "received", "trained", "siblings", "body")),
    "batch": (schema.BatchImage, {}),
    "sourced": (None, _group(ELSEWHERE, "source", "version", "rows")),
    "part": (None, _group(ELSEWHERE, "group", "body")),
}  # fmt: skip


@pytest.fixture
def parts(bench):
    flow = bench().begin("r0").flow
    state, nothing = flow.state, (None,) * 9
    stream = state.streams["solver"]
    evaluation = Evaluation({"solver": 0}, 0.0)
    return {
        "state": state,
        "table": state.train,
        "task": TaskRecord("train-0", Prompt("p"), 1),
        "lease": Lease("r0", 0.0, 0.0, 0.0),
        "evaluations": state.evaluations,
        "evaluation": evaluation,
        "score": SetScore(1),
        "raas": state.fleet.all()[0],
        "fleet": state.fleet,
        "trainer": state.trainers["solver"],
        "versions": state.versions,
        "balance": state.balance,
        "clock": state.balance._clocks["solver"],
        "progress": state.progress,
        "admission": state.admission,
        "cursor": state.admission.cursor,
        "chain": stream.chain,
        "stream": stream,
        "buffer": stream.buffer,
        "row_source": stream.row_source,
        "staleness": stream.staleness,
        "watch": stream.watch,
        "statistics": stream.statistics,
        "sums": _Sums(),
        "means": stream.episode_means,
        "failures": state.failures,
        "overlap": state.overlap,
        "swapping": flow.swapping,
        "pool": flow.pool,
        "intake": flow.intake,
        "row": Row(*nothing),
        "batch": ServedBatch("b", 0, (), 0, 0),
        "sourced": SourcedRows(),
        "part": PartialGroup(None, None),
    }


@pytest.mark.parametrize("name", PARTS)
def test_each_attribute_is_saved_or_listed(parts, name):
    part, (kind, left_out) = parts[name], PARTS[name]
    there, fields = set(attributes(part)), kind.__struct_fields__ if kind else ()
    saved = {attribute for attribute in there if attribute.removeprefix("_") in fields}
    assert there - saved == left_out.keys()


def test_each_part_is_looked_at(parts):
    assert parts.keys() == PARTS.keys()
