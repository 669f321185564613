"""What a server of a version that was not proved does not have."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from astraflow_core.errors import AstraFlowError
from astraflow_serving.http import ServerClient
from astraflow_wire.decoding import from_json


class _Description(msgspec.Struct):
    paths: dict[str, msgspec.Raw]


async def what_differs(client: ServerClient, routes: Collection[str]) -> str:
    """In words, by the server's own description of its routes (OpenAPI): which of ``routes`` it lacks."""
    try:
        described = await client.get("/openapi.json")
        known = from_json(described, _Description, "/openapi.json").paths.keys()
    except AstraFlowError as error:
        return f"it does not list its routes ({error}), so the differences are unknown"
    missing = ", ".join(sorted(set(routes) - known))
    if missing:
        return f"it has no {missing}"
    return "its routes have the same names, but they may take or return something else"
