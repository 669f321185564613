"""Requests of trainers that have lost their state, of RaaS that answer, and of RaaS for drafts, which the dataflow refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astraflow_wire import messages
from astraflow_wire.http import drafts, recovery

TRAINER = messages.RegisterTrainer(policy="solver", pid=1, host="h")
OFFER = recovery.OfferVersion(raas="r0", policy="solver", endpoints=[], error="e")
ASK_DRAFTS = drafts.AskDrafts(raas="r0", task="train-0", most_bytes={"solver": 1})
OTHER_PACKAGES = {"astraflow-core": "0.0.1"}
RECOVER = recovery.RecoverVersion(policy="solver", wait_s=0)
Sent = Callable[..., Callable[[], Any]]


def refused(sent: Sent, superseded: Sent) -> dict[str, list[tuple[Callable[[], Any], ...]]]:
    """Path -> for each refusal that is documented, in that order, requests that are refused so; made by ``sent`` from a
    message and what differs in it, and by ``superseded`` in the place of a process that was replaced."""
    register, recover = "/v1/trainers/register", "/v1/versions/recover"
    offer, ask = "/v1/versions/offer", "/v1/tasks/drafts"
    return {
        register: [
            (sent(register, TRAINER, policy="nobody"),),
            (sent(register, TRAINER, updates=(5,)), sent(register, TRAINER, recovered=5)),
            (sent(register, TRAINER, packages=OTHER_PACKAGES),),
        ],
        recover: [(sent(recover, RECOVER, policy="nobody"),)],
        offer: [
            (
                sent(offer, OFFER, incarnation=9),
                sent(offer, OFFER, raas="nobody", incarnation=1),
            ),
            (superseded(offer, OFFER),),
        ],
        ask: [
            (
                sent(ask, ASK_DRAFTS, incarnation=9),
                sent(ask, ASK_DRAFTS, raas="nobody", incarnation=1),
            ),
            (superseded(ask, ASK_DRAFTS),),
            (sent(ask, ASK_DRAFTS, incarnation=1),),
        ],
    }
