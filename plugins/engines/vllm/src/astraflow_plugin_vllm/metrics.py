"""The server's own measurements."""

from __future__ import annotations

import math
import re

from astraflow_serving.http import ServerClient

SAMPLED = "generation_tokens_total"
DRAFTED = "spec_decode_"
"""What the names of figures about drafts begin with; a server without drafts has none."""
_SAMPLE = re.compile(rb"^(vllm:\w+)(?:\{[^}]*\})? ([-+]?\d\S*)$", re.MULTILINE)


async def metrics(client: ServerClient) -> dict[str, float]:
    """Its Prometheus samples, without their prefix and summed over their labels; those that are finite."""
    values: dict[str, float] = {}
    for name, value in _SAMPLE.findall(await client.get("/metrics")):
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            key = name.decode().removeprefix("vllm:")
            values[key] = values.get(key, 0.0) + number
    return values
