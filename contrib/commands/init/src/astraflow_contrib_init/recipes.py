"""What each recipe puts into a configuration: prompts, workflow, reward, and the lengths that go with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from astraflow_contrib_init.choices import Choices

AGENT_FILE = "agent.py"


@dataclass(frozen=True, slots=True)
class RecipeTask:
    """The part of a configuration that a recipe decides: keys of tables, in which a key may be dotted. ``prompts`` lacks
    its ``split``, since training and evaluation differ in it. ``files``: names and contents of what is written next to the configuration."""

    prompts: dict[str, Any]
    prompts_note: str
    workflow: dict[str, Any]
    workflow_note: str
    reward: dict[str, Any] | None
    reward_note: str
    max_tokens: int
    tables: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def task_of(choices: Choices, folder: Path) -> RecipeTask:
    """The task of a recipe, for a configuration in ``folder``."""
    task = _MAKERS[choices.recipe](choices, folder)
    if choices.reward is None:
        return task
    note = f"`astraflow config explain reward/{choices.reward}` lists its keys."
    if ":" in choices.reward:
        note = "Of a module of yours: docs/write-a-workflow.md#a-reward."
    return replace(task, reward={"use": choices.reward}, reward_note=note)


def _own(choices: Choices, folder: Path, **keys: Any) -> dict[str, Any]:
    """The user's data, of which a tenth is held out by the text of the prompts."""
    assert choices.data is not None, "asked only where there is data"
    path = choices.data.resolve()
    near = path.relative_to(folder) if path.is_relative_to(folder) else path
    return {"use": "split", "source": {"use": choices.source(), "path": near.as_posix(), **keys}}


_ARITHMETIC = {
    "use": "reasoning_gym",
    "size": 2000,
    "datasets.products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "datasets.gcd": {"min_value": 1, "max_value": 20},
}
_ARITHMETIC_NOTE = "Arithmetic, made by reasoning_gym. For data of yours see contrib/prompts."
_ROWS_NOTE = (
    "Rows with `prompt` and `answer`; prompt_key and answer_key name other columns, template makes the text of several.\n"
    "A tenth of the prompts is held out, by their text."
)
_CHAT = {
    "use": "single_turn",
    "chat": (True, "the prompt is a message of the model's chat template"),
}
_CHAT_NOTE = "One completion per episode."


def _math(choices: Choices, folder: Path) -> RecipeTask:
    own = choices.data is not None
    return RecipeTask(
        prompts=_own(choices, folder) if own else _ARITHMETIC,
        prompts_note=_ROWS_NOTE if own else _ARITHMETIC_NOTE,
        workflow=_CHAT,
        workflow_note=_CHAT_NOTE,
        reward={"use": "math_verify"} if own else {"use": "numeric"},
        reward_note="1 if the answers are equal as mathematics."
        if own
        else "1 if the last number is right. For LaTeX: math_verify.",
        max_tokens=1024 if choices.gpus else 48,
    )


def _code(choices: Choices, folder: Path) -> RecipeTask:
    own = choices.data is not None
    return RecipeTask(
        prompts=_own(choices, folder, answer_key="") if own else {"use": "code_tasks", "steps": 2},
        prompts_note="Rows with `prompt` and `tests`; contrib/code/README.md has the forms of a test.\n"
        "A tenth of the prompts is held out, by their text."
        if own
        else "Small functions on lists, with hidden tests, made from a seed.",
        workflow=_CHAT,
        workflow_note=_CHAT_NOTE,
        reward={
            "use": "code_tests",
            "score": ("fraction", '"all": only whole solutions earn 1'),
            "sandbox": {"cpu_s": 2, "memory_mb": 256},
        },
        reward_note="The share of tests that the program passes, in a sandbox (Linux).",
        max_tokens=1024 if choices.gpus else 128,
    )


def _search(choices: Choices, folder: Path) -> RecipeTask:
    own = choices.data is not None
    return RecipeTask(
        prompts=_own(choices, folder) if own else {"use": "invented_facts", "hops": [1]},
        prompts_note="A folder with questions.jsonl and passages.jsonl; contrib/search_qa/README.md has their form.\n"
        "A tenth of the questions is held out, by their text."
        if own
        else "Questions about an invented world, so that no model knows the answers.",
        workflow={"use": "environment"},
        workflow_note="Several turns: <search>words</search>, then <answer>it</answer>.",
        reward=None,
        reward_note="",
        max_tokens=256 if choices.gpus else 48,
        tables={
            "workflow.environment": (
                "The environment rewards an episode itself.",
                {"use": "search_qa", "turns": (4, "searches, and the answer"), "reward": "f1"},
            )
        },
    )


def _chat_agent(choices: Choices, folder: Path) -> RecipeTask:
    own = choices.data is not None
    return RecipeTask(
        prompts=_own(choices, folder) if own else _ARITHMETIC,
        prompts_note=_ROWS_NOTE if own else _ARITHMETIC_NOTE,
        workflow={
            "use": "agent",
            "target": (f"{Path(AGENT_FILE).stem}:play", f"the function play of {AGENT_FILE}"),
            "folder": ".",
            "max_calls": (16, "calls of the model per episode"),
        },
        workflow_note="A function of yours plays the episode: docs/agents.md.",
        reward={"use": "numeric"},
        reward_note="Scores the last completion, unless the agent returns a reward.",
        max_tokens=512 if choices.gpus else 48,
        files={AGENT_FILE: _AGENT},
    )


_AGENT = '''"""The agent. It knows nothing of AstraFlow: it talks to a model by OpenAI's protocol (pip install openai)."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

TURNS = 2
# Made once, before episodes are forked.
CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="that of an episode")


def play(task: Any) -> None:
    """One episode. It returns nothing, so [reward] scores the last completion; return a number to reward it here."""
    client = CLIENT.with_options(base_url=task.base_url, api_key=task.api_key)
    messages: list[Any] = [{"role": "user", "content": task.data["prompt"]}]
    for turn in range(TURNS):
        reply = client.chat.completions.create(model=task.models[0], messages=messages)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
        if turn + 1 < TURNS:
            messages.append({"role": "user", "content": "Check this, then give the final answer."})
'''

_MAKERS = {"math": _math, "code": _code, "search": _search, "chat-agent": _chat_agent}
