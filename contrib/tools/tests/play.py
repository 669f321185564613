"""Episodes of the workflow in which the test scripts the policy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astraflow_contrib_tools.config import ToolsConfig
from astraflow_contrib_tools.workflow import ToolsWorkflow
from astraflow_core.types import Prompt, Sampling, Trajectory
from astraflow_testing.conformance.subject import context
from astraflow_testing.scripted_policies import PairsTokenizer, ScriptedPolicies

HERE = Path(__file__).parent
TEMPLATES = HERE.parents[2] / "libs" / "gateway" / "tests" / "templates"
QWEN = PairsTokenizer(
    (TEMPLATES / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text("utf-8"),
    "<|im_end|>",
    ("<|im_start|>",),
)


def call(name: str, **arguments: Any) -> str:
    """How the model writes a call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def workflow(policies: Sequence[str] = ("p",), **keys: Any) -> ToolsWorkflow:
    keys.setdefault("folder", HERE)
    return ToolsWorkflow(ToolsConfig(**keys), context("raas", Path("r"), policies=tuple(policies)))


def scripted(*said: Any) -> ScriptedPolicies:
    sampling = Sampling(max_tokens=400)
    return ScriptedPolicies(["p"], says={"p": said}, sampling=sampling, tokenizer=QWEN)


async def played(playing: ToolsWorkflow, *said: Any, prompt: Any = "what is 6 * 7?") -> Any:
    """The trajectory, and the text of the last prompt."""
    policies = scripted(*said)
    trajectory = await playing.run_episode(policies.engines(), Prompt("one", {"prompt": prompt}))
    assert isinstance(trajectory, Trajectory)
    return trajectory, QWEN.decode(policies.asked[-1].prompt, skip_special=False)


def one(*said: Any, **keys: Any) -> Any:
    return asyncio.run(played(workflow(**keys), *said))


def all_end(pids: str) -> bool:
    """Whether the processes end; one that was killed is gone a moment later."""
    until = time.monotonic() + 60
    while any(map(runs, map(int, pids.split()))) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(runs, map(int, pids.split())))


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
