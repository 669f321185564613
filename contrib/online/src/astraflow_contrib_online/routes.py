"""The routes by which a service opens episodes, rewards and abandons them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from astraflow_contrib_online.slots import Slot, Slots
from astraflow_gateway.dialects.bodies import parsed
from astraflow_gateway.requests import BadRequest
from astraflow_gateway.rewards import AgentReport, TurnCredit
from astraflow_wire.http.auth import authorized

RETRY_AFTER_S = 1
PATH = "/v1/episodes"

OpenUntrained = Callable[[], Slot | None]
"""Opens an episode that is answered and not trained; ``None`` if there is no room for it."""


class RewardBody(msgspec.Struct, forbid_unknown_fields=True):
    """``reward`` for all policies that were sampled, or ``rewards`` for each, and what ``turns`` earned; with ``done`` the
    episode is over."""

    reward: float | None = None
    rewards: dict[str, float] | None = None
    turns: tuple[TurnCredit, ...] = ()
    done: bool = True


def add_routes(app: FastAPI, slots: Slots, token: str, open_untrained: OpenUntrained) -> None:
    """Serve ``slots`` to clients that have ``token``."""

    def check(request: Request) -> None:
        given = request.headers.get("authorization") or (
            f"Bearer {request.headers.get('x-api-key', '')}"
        )
        if not authorized(given, token):
            raise BadRequest(
                "episodes are opened and rewarded with the token of the run, not with the key of an episode; it is in "
                "RUN/online/token, unless [workflow] token_env names it",
                401,
                "invalid_token",
            )

    async def open_episode(request: Request) -> Response:
        check(request)
        slot = slots.take() or open_untrained()
        if slot is None:
            told = {
                "message": "no slot is free: the run has as many episodes as it may train within its bound of staleness; "
                f"ask again in {RETRY_AFTER_S} s",
                "type": "server_error",
                "param": None,
                "code": "no_free_slot",
            }
            return JSONResponse({"error": told}, 503, {"retry-after": str(RETRY_AFTER_S)})
        root = str(request.base_url).rstrip("/")
        return JSONResponse(
            {
                "id": slot.id,
                "api_key": slot.key,
                "base_url": f"{root}/v1",
                "models": list(slot.episode.engines),
                "trained": slot.trained,
            },
            201,
        )

    async def reward(request: Request) -> Response:
        check(request)
        given = parsed(await request.body(), RewardBody)
        if (given.reward is None) == (given.rewards is None):
            raise BadRequest("give one of reward and rewards", param="reward")
        value: Any = given.reward if given.rewards is None else given.rewards
        report = AgentReport(value, given.turns)
        return JSONResponse(slots.reward(request.path_params["id"], report, given.done))

    async def abandon(request: Request) -> Response:
        check(request)
        slots.abandon(request.path_params["id"])
        return Response(status_code=204)

    async def status(request: Request) -> Response:
        check(request)
        return JSONResponse(slots.status())

    app.add_api_route(PATH, open_episode, methods=["POST"])
    app.add_api_route(PATH, status, methods=["GET"])
    app.add_api_route(PATH + "/{id}/reward", reward, methods=["POST"])
    app.add_api_route(PATH + "/{id}", abandon, methods=["DELETE"])
