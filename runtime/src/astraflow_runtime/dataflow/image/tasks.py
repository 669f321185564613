"""Tasks and evaluations of an image."""

from __future__ import annotations

from collections.abc import Callable

from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.image.attributes import put, taken
from astraflow_runtime.dataflow.image.rows import RestoredRows, SavedRows
from astraflow_runtime.dataflow.image.schema import (
    EvaluationImage,
    EvaluationsImage,
    LeaseImage,
    ScoreImage,
    TableImage,
    TaskImage,
)
from astraflow_runtime.dataflow.tasks.evaluation import Evaluation, Evaluations
from astraflow_runtime.dataflow.tasks.partial_groups import PartialGroup
from astraflow_runtime.dataflow.tasks.queue import Lease, TaskRecord, TaskTable
from astraflow_runtime.dataflow.tasks.scores import SetScore


def save_table(table: TaskTable) -> Callable[[SavedRows], TableImage]:
    """A table as it is now; the function that is returned makes the rest of the image, in any thread."""
    codes, holders, names = table._ended.columns()
    image = taken(
        TableImage,
        table,
        tasks=[],
        queue=[task.id for task in table._queue],
        twice=list(table.twice),
        codes=codes,
        holders=holders,
        names=names,
    )
    live = [
        (task, task.attempts, task.last_error, task.lease, task.second, task.sequences, task.parts)
        for task in table._live.values()
    ]

    def finish(rows: SavedRows) -> TableImage:
        for task, attempts, last_error, lease, second, sequences, parts in live:
            image.tasks.append(
                TaskImage(
                    id=task.id,
                    position=task.position,
                    group_size=task.group_size,
                    eval_set=task.eval_set,
                    pinned=dict(task.pinned),
                    attempts=attempts,
                    last_error=last_error,
                    lease=_lease(lease),
                    second=_lease(second),
                    sequences=dict(sequences),
                    parts=[rows.group(part.group, part.body) for part in parts],
                )
            )
        return image

    return finish


def _lease(lease: Lease | None) -> LeaseImage | None:
    if lease is None:
        return None
    return LeaseImage(lease.raas, lease.since, lease.limit, dict(lease.newest))


def restore_table(
    table: TaskTable, image: TableImage, rows: RestoredRows, prompt: Callable[[TaskImage], Prompt]
) -> None:
    """Be what was saved; ``prompt`` finds that of a task."""
    put(table, image, "tasks", "queue", "twice", "codes", "holders", "names")
    table._ended.restore(image.codes, image.holders, image.names)

    def lease(saved: LeaseImage | None) -> Lease | None:
        if saved is None:
            return None
        table._held.setdefault(saved.raas, set()).add(each.id)
        expires = saved.since + table._lease_s
        return Lease(saved.raas, saved.since, expires, saved.limit, saved.newest)

    for each in image.tasks:
        table._live[each.id] = TaskRecord(
            each.id,
            prompt(each),
            each.group_size,
            each.eval_set,
            each.pinned,
            each.attempts,
            each.last_error,
            lease(each.lease),
            lease(each.second),
            each.sequences,
            tuple(PartialGroup(rows.groups[place], rows.bodies[place]) for place in each.parts),
            each.position,
        )
        table._leased += each.lease is not None
    table._queue.extend(table._live[name] for name in image.queue)
    table.twice = {name: table._live[name] for name in image.twice}


def save_evaluations(evaluations: Evaluations) -> EvaluationsImage:
    """All evaluations."""
    active = evaluations.active
    return taken(
        EvaluationsImage,
        evaluations,
        pending=[_evaluation(each) for each in evaluations.pending],
        active=_evaluation(active) if active else None,
    )


def _evaluation(evaluation: Evaluation) -> EvaluationImage:
    scores = {
        name: taken(
            ScoreImage, score, prompts={policy: list(own) for policy, own in score.prompts.items()}
        )
        for name, score in evaluation.scores.items()
    }
    return taken(EvaluationImage, evaluation, scores=scores)


def restore_evaluations(evaluations: Evaluations, image: EvaluationsImage) -> None:
    """Be what was saved."""
    put(evaluations, image, "pending", "active")
    evaluations.pending.extend(_restored(each) for each in image.pending)
    evaluations.active = _restored(image.active) if image.active else None


def _restored(image: EvaluationImage) -> Evaluation:
    scores = {
        name: SetScore(score.k, score.prompts, score.n, score.failed, score.last_error)
        for name, score in image.scores.items()
    }
    return Evaluation(image.versions, image.due_at, scores, started_at=image.started_at)
