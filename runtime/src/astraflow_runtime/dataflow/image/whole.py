"""The whole state of a dataflow as an image, and back."""

from __future__ import annotations

from collections.abc import Callable

from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.image.attributes import put, taken
from astraflow_runtime.dataflow.image.fleet import (
    restore_balance,
    restore_fleet,
    restore_trainers,
    restore_versions,
    save_balance,
    save_fleet,
    save_trainers,
    save_versions,
)
from astraflow_runtime.dataflow.image.policies import (
    as_json,
    restore_chain,
    restore_swaps,
    save_chain,
    save_swaps,
    state_of,
)
from astraflow_runtime.dataflow.image.rows import RestoredRows, SavedRows
from astraflow_runtime.dataflow.image.schema import AdmissionImage, RunImage, StateImage, TaskImage
from astraflow_runtime.dataflow.image.streams import restore_stream, save_stream
from astraflow_runtime.dataflow.image.tasks import (
    restore_evaluations,
    restore_table,
    save_evaluations,
    save_table,
)
from astraflow_runtime.dataflow.journal_reader import JournalReader


def save_state(flow: Dataflow) -> Callable[[], StateImage]:
    """The state as it is now: what may change is copied, and the function that is returned makes the image of it, in any
    thread and once."""
    state = flow.state
    chain, chain_states = save_chain(state.admission.chain)
    admission = taken(
        AdmissionImage, state.admission, chain=chain, position=state.admission.cursor.position
    )
    streams = {policy: save_stream(stream) for policy, stream in state.streams.items()}
    train, evals = save_table(state.train), save_table(state.eval)
    balance, rule = save_balance(state.balance), state_of(state.balance.rule)
    run, evaluations = _save_run(flow), save_evaluations(state.evaluations)
    raas, total = save_fleet(state.fleet), state.fleet.recorded_total
    trainers, versions = save_trainers(state), save_versions(state)
    # The item of a row is replaced when it is served, if it may be drawn again: it is looked at now, not later.
    again = any(stream.chain.wants_kept for stream in state.streams.values())
    listed = [stream.rows_needed() for stream in state.streams.values()] if again else []
    needed = [row for rows in listed for row in rows]
    items = [row.item for row in needed]

    def finish() -> StateImage:
        rows = SavedRows({id(row): item for row, item in zip(needed, items, strict=True)})
        chain.states = [as_json(one) for one in chain_states]
        balance.rule = as_json(rule)
        return StateImage(
            groups=rows.groups,
            rows=rows.rows,
            run=run,
            admission=admission,
            train=train(rows),
            eval=evals(rows),
            streams={policy: done(rows) for policy, done in streams.items()},
            evaluations=evaluations,
            raas=raas,
            recorded_total=total,
            trainers=trainers,
            versions=versions,
            balance=balance,
        )

    return finish


def restore_state(flow: Dataflow, image: StateImage, reader: JournalReader) -> None:
    """Be what was saved. ``flow`` is new, ``reader`` reads the bodies of groups."""
    state = flow.state
    _restore_run(flow, image.run)
    rows = RestoredRows(image.groups, image.rows, reader)
    put(state.admission, image.admission, "chain", "position")
    state.admission.cursor.position = image.admission.position
    restore_chain(state.admission.chain, image.admission.chain)

    def prompt(task: TaskImage) -> Prompt:
        if task.eval_set:
            return state.evaluations.prompt(task.eval_set, task.position)
        return state.admission.cursor.at(task.position)

    restore_table(state.train, image.train, rows, prompt)
    restore_table(state.eval, image.eval, rows, prompt)
    for policy, stream in image.streams.items():
        restore_stream(state.streams[policy], stream, rows)
    restore_evaluations(state.evaluations, image.evaluations)
    restore_fleet(state.fleet, image.raas, image.recorded_total)
    restore_trainers(state, image.trainers)
    restore_versions(state, image.versions)
    restore_balance(state.balance, image.balance)


def _save_run(flow: Dataflow) -> RunImage:
    state = flow.state
    return RunImage(
        state=state.progress.state,
        reason=state.progress.reason,
        since=state.progress.since,
        rejected=dict(state.rejected),
        swaps=list(state.swaps),
        swapped=save_swaps(flow.swapping),
        swaps_done=dict(flow.swapping._done),
        added=flow.pool.added,
        drained=flow.pool.drained,
        pool_done=sorted(flow.pool._done),
        lately=list(state.failures._lately),
        environments=dict(state.failures.environments),
        overlap={name: sorted(met) for name, met in state.overlap._met.items()},
        next_trajectory=flow.intake.next_trajectory,
    )


def _restore_run(flow: Dataflow, image: RunImage) -> None:
    state = flow.state
    restore_swaps(flow.swapping, image.swapped)
    flow.swapping._done.update(image.swaps_done)
    state.progress.state, state.progress.reason = image.state, image.reason
    state.progress.since = image.since
    state.rejected.update(image.rejected)
    state.swaps.extend(image.swaps)
    flow.pool.added, flow.pool.drained = image.added, image.drained
    flow.pool._done.update(image.pool_done)
    state.failures._lately.extend(image.lately)
    state.failures.environments.update(image.environments)
    for name, met in image.overlap.items():
        state.overlap._met[name].update(met)
    flow.intake.next_trajectory = image.next_trajectory
