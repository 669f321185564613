"""The server's own measurements."""

from __future__ import annotations

import re

from astraflow_serving.http import ServerClient

SAMPLED = "generation_tokens_total"
_SAMPLE = re.compile(rb"^(vllm:\w+)(?:\{[^}]*\})? ([-+.\deE]+|NaN)$", re.MULTILINE)


async def metrics(client: ServerClient) -> dict[str, float]:
    """Its Prometheus samples, without their prefix and summed over their labels."""
    values: dict[str, float] = {}
    for name, value in _SAMPLE.findall(await client.get("/metrics")):
        key = name.decode().removeprefix("vllm:")
        values[key] = values.get(key, 0.0) + float(value)
    return values
