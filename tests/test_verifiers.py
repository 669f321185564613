"""Environments of both generations of verifiers are played; the trained tokens are those that they record."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_clients.environment import interpreter_with

from astraflow_contrib_verifiers.config import VerifiersWorkflowConfig, WorkerKeys
from astraflow_contrib_verifiers.interpreter import variables
from astraflow_contrib_verifiers.prompts import TASK, EnvironmentTask
from astraflow_contrib_verifiers.workflow import VerifiersWorkflow
from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import ComponentContext, Prompt, RunInfo, Sampling, Trajectory
from astraflow_testing.runs import User
from astraflow_testing.scripted_policies import Answer, ScriptedPolicies

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.turns(
        "libs/gateway/src/**/*.py",
        "contrib/verifiers/**/*.py",
        "examples/verifiers*.toml",
        "tests/verifiers_environments/*",
        "tests/agent_clients/environment.py",
        unit="verifiers",
    ),
]

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "contrib" / "verifiers" / "tests" / "environments"
MAIN = ROOT / "contrib/verifiers/src/astraflow_contrib_verifiers/verifiers_worker/__main__.py"
REQUIREMENTS = Path(__file__).parent / "verifiers_environments"
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
Json = dict[str, Any]


@pytest.fixture(scope="session")
def v1() -> str:
    return interpreter_with(REQUIREMENTS / "v1.txt")


@pytest.fixture(scope="session")
def v0() -> str:
    return interpreter_with(REQUIREMENTS / "v0.txt")


def context(folder: Path) -> ComponentContext:
    run = RunInfo("r", 0, 1, 1, ("p",), folder, ("judge",))
    return ComponentContext(run, "raas", "", 0, folder / "workflow")


TELL = """
import json, runpy, sys
load = runpy.run_path(sys.argv[2])["load"]
from astraflow_contrib_verifiers.verifiers_worker.service import Spec
said = sys.stdout
sys.stdout = sys.stderr
for environment, arguments, split in json.loads(sys.argv[1]):
    loaded = load(Spec(environment, arguments, split))
    told = [[task.prompt, task.answer, task.digest] for task in loaded.tasks()]
    said.write(json.dumps([loaded.roles, told]) + "\\n")
"""


def prompts(python: str, *specs: tuple[str, Json, str]) -> list[list[Prompt]]:
    """The prompts of several environments, read by one process, since each import of verifiers takes seconds."""
    keys = WorkerKeys(python=python, folder=ENVIRONMENTS)
    done = subprocess.run(
        [python, "-c", TELL, json.dumps(specs), str(MAIN)], env=variables(keys, {}), capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = []
    for (environment, arguments, split), line in zip(specs, done.stdout.splitlines(), strict=True):
        roles, told = json.loads(line)
        tasks = [
            EnvironmentTask(environment, arguments, split, index, digest, roles)
            for index, (_, _, digest) in enumerate(told)
        ]
        found.append(
            [
                Prompt(f"{environment}:{each.index}", {TASK: msgspec.to_builtins(each)})
                for each in tasks
            ]
        )
    return found


def played(
    python: str, folder: Path, which: list[Prompt], says: Mapping[str, Answer], **keys: Any
) -> list[Any]:
    """What each prompt came to, all in one worker. ``says``: end of a prompt's text → what is answered."""

    def answer(policy: str, text: str) -> Answer:
        return next(said for end, said in says.items() if text.endswith(f"{end}\n<assistant>"))

    async def run() -> list[Any]:
        policies = ScriptedPolicies(["p"], ["judge"], says=answer, sampling=Sampling(100))
        config = VerifiersWorkflowConfig(
            python=python, folder=ENVIRONMENTS, check_tokens=True, **keys
        )
        workflow = VerifiersWorkflow(config, context(folder))
        plays = (workflow.run_episode(policies.engines(), each) for each in which)
        return await asyncio.gather(*plays, return_exceptions=True)

    return asyncio.run(run())


def tokenizer_in(folder: Path) -> str:
    """The folder of a tokenizer that has the ids of the scripted policies."""
    vocabulary = {chr(each): each for each in range(256)} | {"<end>": 256}
    split = {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}
    end = {
        "id": 256, "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False,
    }  # fmt: skip
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": split, "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    }  # fmt: skip
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    keys = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(keys), "utf-8")
    return str(folder)


def test_v1_plays(v1: str, tmp_path: Path) -> None:
    """A taskset and an environment with roles, by token ids and by chat completions, in one worker."""
    sums, debates = prompts(v1, ("sums_v1", {"taskset": {"first": 0}}, "train"), ("debate_v1", {}, "train"))  # fmt: skip
    says: dict[str, Answer] = {
        "0+0?": "0", "1+1?": "2", "of doors.": "They open.", "They open.": "Short.", "Short.": "They close, too.",
    }  # fmt: skip
    tokenizers = {"p": tokenizer_in(tmp_path / "tokenizer")}
    which = [*sums[:2], debates[0]]
    failed, right, debate = played(v1, tmp_path, which, says, tokenizers=tokenizers)
    assert isinstance(failed, EnvironmentFailed) and failed.kind == "task_error"
    assert "nobody can say what nothing is" in failed.reason
    assert isinstance(right, Trajectory), right
    assert right.rewards == {"p": 2.0} and right.metrics["length"] == 1.0
    assert isinstance(debate, Trajectory), debate
    said = [each.text for each in debate.completions]
    assert said == ["They open.", "They close, too.", "Short."]
    assert debate.rewards == {"p": 0.0}, "the mean of its roles"
    assert [each.reward for each in debate.sequences][-1] == -1.0
    assert debate.metrics["critic.won"] == -1.0 and debate.metrics["agent_calls"] == 3.0


def test_v0_plays(v0: str, tmp_path: Path) -> None:
    """One turn, several, tools, and an error, in one worker; its trajectory records every token."""
    one, held_out, tools, two, broken = prompts(
        v0,
        ("games_v0", {"first": 0}, "train"),
        ("games_v0", {}, "eval"),
        ("games_v0", {"kind": "tools", "first": 5}, "train"),
        ("games_v0", {"kind": "two"}, "train"),
        ("games_v0", {"kind": "two", "broken": True}, "train"),
    )
    call = '<tool_call>\n{"name": "double", "arguments": {"number": 5}}\n</tool_call>'
    says: dict[str, Answer] = {
        "1+1?": "1", "sure?": "2", "100+100?": "200", "</tool_response>": "10", "5+5?": call, "0+0?": "0",
    }  # fmt: skip
    which = [one[0], one[1], held_out[0], tools[0], two[0], broken[0]]
    nothing, wrong, right, called, twice, failed = played(v0, tmp_path, which, says)
    assert isinstance(failed, EnvironmentFailed) and failed.kind == "tool_call_error", failed
    assert [each.rewards for each in (wrong, right, twice)] == [{"p": 0.0}, {"p": 2.0}, {"p": 2.0}]
    assert twice.metrics["num_turns"] == 2.0
    assert called.rewards == {"p": 2.0} and called.metrics["num_turns"] == 2.0
    assert isinstance(nothing, Trajectory), "this rubric counts an error of its function as 0"


@pytest.mark.parametrize(
    ("generation", "example"), [("v1", "verifiers.toml"), ("v0", "verifiers_v0.toml")]
)
def test_the_example_trains(
    user: User, request: pytest.FixtureRequest, generation: str, example: str
) -> None:
    python = request.getfixturevalue(generation)
    tables = ("prompts", "workflow", "eval.sets.held_out")
    overrides = [*(f"{table}.python={python}" for table in tables), "run.steps=2"]
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", ROOT / "examples" / example, *arguments, deadline_s=280)
    assert ended.exit_code == 0, ended.text
    # An empty reply, as this model writes some, is a failure for v0.
    assert ended.summary["steps"] == 2, ended.summary
    assert generation == "v0" or ended.summary["failed"] == 0, ended.summary
    assert "agent_calls 1.000" in ended.text and "turns 1.000" in ended.text
