"""What a process that joins a run reads from its dataflow before it resolves the config."""

from __future__ import annotations

from contextlib import closing

from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.shared_secret import shared_secret
from astraflow_runtime.config.auto_transport import Joined
from astraflow_wire.http.client import SyncClient
from astraflow_wire.status import read_status

ASK_S = 2.0
"""The timeout of the request: its result is optional."""


def joined(url: str, token: str) -> Joined:
    """The newest version of each policy; none if the dataflow does not reply. Raises :class:`UserError` if it is not one of the
    run."""
    with closing(SyncClient(url, token)) as client:
        try:
            answer = client.get_json("/v1/status", deadline_s=ASK_S)
        except UserError:  # another service answers there
            raise
        except AstraFlowError:
            return Joined({}, shared_secret(token))
    announced = {
        name: policy.announced
        for name, policy in read_status(answer).policies.items()
        if policy.announced is not None
    }
    return Joined(announced, shared_secret(token))
