"""The agents of ``bench.gateway``, in an interpreter with the OpenAI client and without AstraFlow.

Each line of standard input is an order: ``{"base_url", "keys", "turns", "question"}``. One conversation for each key runs at
once, all over one pool of connections; after each reply the question comes again. A line of JSON is printed when all have ended.
"""

import asyncio
import json
import sys
from typing import Any

import openai

DEADLINE_S = 1200.0


async def converse(client: openai.AsyncOpenAI, key: str, turns: int, question: str) -> int:
    """Play one episode; the number of its calls."""
    episode = client.with_options(api_key=key)
    messages: list[Any] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{question} ({key[-4:]}, {turn})"})
        reply = await episode.chat.completions.create(model="solver", messages=messages)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
    return turns


async def main() -> None:
    """Run the orders of standard input until it ends."""
    client: openai.AsyncOpenAI | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        client = client or openai.AsyncOpenAI(
            api_key="none", base_url=order["base_url"], timeout=DEADLINE_S, max_retries=0
        )
        calls = await asyncio.gather(
            *(converse(client, k, order["turns"], order["question"]) for k in order["keys"])
        )
        print(json.dumps({"calls": sum(calls)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
