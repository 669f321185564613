"""Sessions that were kept on disk, taken up again by a server that starts."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from astraflow_contrib_tinker.routes.numbered import NumberedRequest
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.sessions import ClientSampler, ClientSession
from astraflow_contrib_tinker.wire.results import Result
from astraflow_contrib_tinker.work.kept import KeptModel, KeptRequest
from astraflow_contrib_tinker.work.sampling import WeightsSnapshot
from astraflow_contrib_tinker.work.training import TrainedModel
from astraflow_core.errors import AstraFlowError, Refused, UserError

SESSION = "session.json"
MODEL = "model.json"


def recover(service: Service) -> list[str]:
    """Take up all sessions that were kept, and work again on the requests that no state has; in the event loop. Returns
    the ids of their models. :class:`UserError` if one is of another base model, or cannot be read."""
    found = sorted(service.running.glob(f"*/{SESSION}"))
    versions = [int(folder.name) for folder in service.running.glob("*/snapshots/[0-9]*")]
    service.skip_versions(max(versions, default=0))
    for file in found:
        try:
            _session(service, file.parent, json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"the session that was kept in {file.parent} cannot be read: {error!r}; remove the folder, and its client "
                "starts over"
            ) from error
    return [model for session in service.sessions.values() for model in session.models]


def _session(service: Service, folder: Path, about: dict[str, Any]) -> None:
    if about["base"] != service.base.name:
        raise UserError(
            f"{folder} was kept for the model {about['base']!r}, and {service.base.name!r} is served: serve that one again, "
            "or remove the folder, and its client starts over"
        )
    session = ClientSession(folder.name, about["metadata"], time.monotonic(), about["key"])
    service.add_session(session)
    for each in about["samplers"]:
        _sampler(service, session, each)
    for model in sorted(folder.glob(f"[0-9]*/{MODEL}")):
        _model(service, session, int(model.parent.name))


def _sampler(service: Service, session: ClientSession, about: dict[str, Any]) -> None:
    if about["model"] is None:
        number = int(about["id"].rpartition(":")[2])
        try:
            service.create_sampler(session, number, about["path"])
        except Refused:  # the client has deleted the weights: it gets the error when it samples
            return
    else:
        folder = service.snapshots_of(session.id) / str(about["version"])
        snapshot = WeightsSnapshot(about["version"], folder)
        service.keep_snapshot(about["model"], snapshot)
        given = (about["model"], about["follows"])
        service.add_sampler(session, ClientSampler(about["id"], snapshot, None, *given))


def _model(service: Service, session: ClientSession, number: int) -> None:
    kept = KeptModel(service.running / session.id / str(number), service.keep_every)
    requests = kept.read()
    about = kept.about
    model = service.add_model(session, number, about["rank"], about["seed"], about["metadata"])
    model.kept, model.updates = kept, kept.updates
    state, optimizer = kept.state, True
    if state is None and about["load"] is not None:
        state, optimizer = service.store.find(about["load"][0], "weights")[1], about["load"][1]
    model.order.resume(kept.next, kept.results)
    model.creation = service.opened(model, state, optimizer, about["load"], new=False)
    for request in requests:
        _again(service, model, request)


def _again(service: Service, model: TrainedModel, request: KeptRequest) -> None:
    file, number, failed = request.file, request.number, request.failed

    def asked() -> NumberedRequest:
        body = b"" if file is None else file.read_bytes()
        return NumberedRequest.of_file(request.kind, body)

    async def work() -> Result:
        if failed is None or _fails_again(request):
            return await (await asyncio.to_thread(asked)).work(service, model, number)
        raise (
            Refused(400, failed.error)
            if failed.category == "user"
            else AstraFlowError(failed.error)
        )

    model.order.put(number, asked().digest(), work)


def _fails_again(request: KeptRequest) -> bool:
    """Whether a failed one is worked on again: an infinite loss drops the gradient that was held."""
    mistake = request.failed is not None and request.failed.category == "user"
    kinds = ("forward_backward.", "optim_step.")
    return mistake and request.file is not None and request.kind.startswith(kinds)
