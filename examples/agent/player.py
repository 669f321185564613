"""An agent that knows nothing of AstraFlow: it talks to a model by OpenAI's protocol."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

# Made once, before episodes are forked: it takes tens of milliseconds of CPU, most of them for certificates.
CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="that of an episode")


def play(task: Any) -> None:
    """One episode: ask once. The reward of the run scores the answer, since nothing is returned."""
    client = CLIENT.with_options(base_url=task.base_url, api_key=task.api_key)
    client.chat.completions.create(
        model=task.models[0],
        messages=[{"role": "user", "content": task.data["prompt"]}],
    )
