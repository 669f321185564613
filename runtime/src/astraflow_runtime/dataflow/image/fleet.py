"""RaaS, trainers, versions and the balance of an image."""

from __future__ import annotations

from dataclasses import replace

from astraflow_runtime.dataflow.fleet.balance import BalanceMonitor
from astraflow_runtime.dataflow.fleet.raas import Fleet, Health, RaasRecord
from astraflow_runtime.dataflow.image.attributes import put, taken
from astraflow_runtime.dataflow.image.policies import load_state
from astraflow_runtime.dataflow.image.schema import (
    BalanceImage,
    ClockImage,
    RaasImage,
    TrainerImage,
    VersionsImage,
)
from astraflow_runtime.dataflow.state import FlowState


def save_fleet(fleet: Fleet) -> list[RaasImage]:
    """All RaaS; which of them are silent is determined anew."""
    return [
        taken(RaasImage, record, gone=record.health if record.health in ("gone", "left") else "")
        for record in fleet.all()
    ]


def restore_fleet(fleet: Fleet, images: list[RaasImage], total: float) -> None:
    """Be what was saved."""
    fleet.tokens_generated = fleet.recorded_total = total
    for image in images:
        record = RaasRecord(
            image.name,
            image.pid,
            image.host,
            image.capacity,
            image.registered_at,
            image.floor,
            counted_at=image.registered_at,
        )
        put(record, image, "gone")
        ended: dict[str, Health] = {"gone": "gone", "left": "left"}
        record.health = ended.get(image.gone, "alive")
        fleet.add_recorded(record)


def save_trainers(state: FlowState) -> dict[str, TrainerImage]:
    """All trainers."""
    return {policy: taken(TrainerImage, trainer) for policy, trainer in state.trainers.items()}


def restore_trainers(state: FlowState, images: dict[str, TrainerImage]) -> None:
    """Be what was saved."""
    for policy, image in images.items():
        trainer = state.trainers[policy]
        put(trainer, image)
        trainer.first_asked, trainer.waited_s = image.recorded_asked, image.recorded_waited_s


def save_versions(state: FlowState) -> VersionsImage:
    """The versions; those that only a RaaS serves are not needed after a restart."""
    versions, known = state.versions, {}
    for policy, messages in versions._known.items():
        needed = state.evaluations.needed_versions(policy, versions.available)
        kept = {*needed, versions.newest[policy]}
        known[policy] = {number: message for number, message in messages.items() if number in kept}
    digests = {policy: dict(own) for policy, own in versions._digests.items()}
    made = {policy: dict(own) for policy, own in versions._made.items()}
    newest = dict(versions.newest)
    return taken(VersionsImage, versions, known=known, newest=newest, digests=digests, made=made)


def restore_versions(state: FlowState, image: VersionsImage) -> None:
    """Be what was saved."""
    versions = state.versions
    versions._known.update(image.known)
    versions._newest.update(image.newest)
    versions._withdrawn.update(image.withdrawn)
    versions._digests.update(image.digests)
    versions._made.update(image.made)


def save_balance(balance: BalanceMonitor) -> BalanceImage:
    """The balance, without the state of its rule."""
    clocks = {policy: taken(ClockImage, clock) for policy, clock in balance._clocks.items()}
    work = {raas: replace(work) for raas, work in balance.work.items()}
    return taken(BalanceImage, balance, work=work, clocks=clocks, rule=None)


def restore_balance(balance: BalanceMonitor, image: BalanceImage) -> None:
    """Be what was saved."""
    put(balance, image, "clocks", "rule")
    for policy, clock in image.clocks.items():
        put(balance._clocks[policy], clock)
    load_state(balance.rule, image.rule)
