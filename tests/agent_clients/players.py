"""Episodes for clients in processes of their own, and the recount of what is trained of them."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from astraflow_core.types import Sampling
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.episode import Budget, Episode, Rules
from astraflow_gateway.server import Gateway
from astraflow_testing.scripted_policies import Answer, PairsTokenizer, ScriptedPolicies

TEMPLATES = Path(__file__).parents[2] / "libs/gateway/tests/templates"
TEMPLATE = TEMPLATES / "Qwen-Qwen2.5-7B-Instruct.jinja"
PLAY_S = 240
Says = Callable[[str, str], str]


@dataclass
class Player:
    """An episode, its key, and the policy that it samples from."""

    episode: Episode
    policies: ScriptedPolicies
    key: str


def player(
    gateway: Gateway,
    says: Says | Mapping[str, Sequence[Answer]],
    template: Path = TEMPLATE,
    specials: Sequence[str] = ("<|im_start|>",),
) -> Player:
    """A fresh one."""
    tokenizer = PairsTokenizer(template.read_text("utf-8"), "<|im_end|>", specials)
    policies = ScriptedPolicies(["p"], says=says, tokenizer=tokenizer, sampling=Sampling(400))
    engines = policies.engines()
    formats = {name: ChatFormat(engine) for name, engine in engines.items()}
    rules = Rules(Budget(50, 50_000), train_auxiliary=True)
    episode = Episode(engines, formats, rules, "p")
    return Player(episode, policies, gateway.begin(episode))


async def output_of(
    command: list[str], variables: dict[str, str], given: bytes = b"", folder: Path | None = None
) -> str:
    """What ``command`` prints, in an environment in which nothing reaches beyond this machine."""
    closed = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {
        "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "NO_PROXY": "127.0.0.1", **closed,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", **variables,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=environment, cwd=folder,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(given), PLAY_S)
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    assert process.returncode == 0, err.decode()[-4000:]
    return out.decode()


def sampled(policies: ScriptedPolicies) -> Counter[bytes]:
    """Each token that the engine sampled, with all before it, its log-prob and its version."""
    found: Counter[bytes] = Counter()
    for asked in policies.asked:
        result = asked.result
        assert result is not None
        for at in range(len(result.tokens)):
            context = np.concatenate([asked.prompt, result.tokens[: at + 1]]).tobytes()
            found[context + result.logprobs[at].tobytes() + result.versions[at].tobytes()] += 1
    return found


def trained(episode: Episode) -> Counter[bytes]:
    """Each token that is trained, likewise."""
    found: Counter[bytes] = Counter()
    for sequence in episode.sequences():
        for at in np.flatnonzero(sequence.loss_mask).tolist():
            context = sequence.tokens[: at + 1].tobytes()
            found[context + sequence.logprobs[at].tobytes() + sequence.versions[at].tobytes()] += 1
    return found
