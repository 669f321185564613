"""What a process that joins a run asks its dataflow before it reads a config that leaves something open."""

from __future__ import annotations

from contextlib import closing

from astraflow_core.config.auto_transport import Joined
from astraflow_core.errors import AstraFlowError
from astraflow_wire.http.client import SyncClient
from astraflow_wire.status import read_status

ASK_S = 2.0
"""How long the dataflow may take: what it would tell is of use, not needed."""


def joined(url: str, token: str) -> Joined:
    """The newest version of each policy; none if the dataflow does not answer yet."""
    with closing(SyncClient(url, token)) as client:
        try:
            answer = client.get_json("/v1/status", deadline_s=ASK_S)
        except AstraFlowError:
            return Joined({}, token)
    announced = {
        name: policy.announced
        for name, policy in read_status(answer).policies.items()
        if policy.announced is not None
    }
    return Joined(announced, token)
