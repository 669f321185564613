"""Images that servers of the Model Context Protocol give, as images in the conversation."""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import pytest
from play import HERE, QWEN, call, workflow
from pydantic import ValidationError

from astraflow_contrib_tools.config import McpEnvironmentConfig, ToolsConfig
from astraflow_contrib_tools.content import ShownImages, bounded, image_part, text_of, text_part
from astraflow_contrib_tools.mcp_environment import McpEnvironment
from astraflow_core.errors import WorkflowError
from astraflow_core.types import Action, FunctionCall, Observation, Prompt, Sampling, Trajectory
from astraflow_testing.conformance.subject import context
from astraflow_testing.images.pictures import picture
from astraflow_testing.scripted_policies import PairsTokenizer, ScriptedPolicies
from astraflow_wire.images.model import ImageModel

DIAL = [sys.executable, "-I", "-S", str(HERE / "dial_server.py")]
RED, GREEN = picture(1), picture(2)
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SEES = PairsTokenizer(TEMPLATE, "<end>", ["<image>"])
MODEL = ImageModel(token=int(SEES.encode("<image>")[0]), length=3)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def part(data: bytes) -> dict[str, Any]:
    return image_part("image/png", encoded(data))


def content(*items: str | bytes) -> list[dict[str, str]]:
    """As a server has it."""
    return [
        {"type": "text", "text": item}
        if isinstance(item, str)
        else {"type": "image", "data": encoded(item), "mimeType": "image/png"}
        for item in items
    ]


def test_as_many_images_of_an_episode_are_shown_as_is_said() -> None:
    given = [text_part("a"), text_part("b"), part(RED), text_part("c"), part(GREEN)]
    assert ShownImages(0).of(given) == "a\nb\n[image]\nc\n[image]"
    assert ShownImages(2).of(given) == [text_part("a\nb"), part(RED), text_part("c"), part(GREEN)]
    shown = ShownImages(1)
    assert shown.of(given) == [text_part("a\nb"), part(RED), text_part("c\n[image]")]
    assert shown.of([part(RED)]) == "[image]"
    assert (shown.of("text"), shown.of([])) == ("text", "")
    assert text_of(given) == "a\nb\n[image]\nc\n[image]"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GIF89a" + bytes(20), "26 bytes are not an image; expected PNG, JPEG, WEBP"),
        (RED[:-20], "damaged"),
        (bytes(5 << 20), "the most is 4194304"),
        (b"", "0 bytes are not an image"),
    ],
)
def test_what_is_no_image_that_a_model_may_be_shown_is_named_and_counts_for_nothing(
    data: bytes, why: str
) -> None:
    shown = ShownImages(1)
    text = shown.of([text_part("look"), part(data)])
    assert isinstance(text, str) and text.startswith("look\n[image, not shown: ") and why in text
    assert shown.of([part(RED)]) == [part(RED)]


def test_the_text_beside_images_is_bounded() -> None:
    given = [text_part("x" * 30), part(RED), text_part("y" * 30)]
    assert bounded(given, 60) == given
    short, image = bounded(given, 20)
    assert image == part(RED) and short["text"].startswith("x" * 10 + "\n[")  # type: ignore[index]
    assert bounded("z" * 9, 9) == "z" * 9


def test_no_more_than_a_sequence_may_have() -> None:
    assert ToolsConfig(functions=["a:b"], max_images=64).max_images == 64
    for wrong in (65, -1):
        with pytest.raises(ValidationError, match="max_images"):
            ToolsConfig(functions=["a:b"], max_images=wrong)
        with pytest.raises(ValidationError, match="max_images"):
            McpEnvironmentConfig(server={"command": DIAL}, max_images=wrong)


def episode(*said: str, sees: bool = True, **keys: Any) -> tuple[Trajectory, ScriptedPolicies]:
    tokenizer = SEES if sees else QWEN
    policies = ScriptedPolicies(["p"], (), {"p": said}, Sampling(max_tokens=4000), tokenizer)
    if sees:
        policies.handles["p"].images = MODEL
    playing = workflow(mcp={"dial": {"command": DIAL}}, **keys)
    prompt = Prompt("one", {"prompt": "Look."})
    trajectory = asyncio.run(playing.run_episode(policies.engines(), prompt))
    assert isinstance(trajectory, Trajectory)
    return trajectory, policies


@pytest.mark.slow
def test_the_policy_of_the_workflow_sees_the_images_of_a_server() -> None:
    look = call("show", content=content("this:", RED, GREEN))
    trajectory, policies = episode(look, "I see.", max_images=1)
    (sequence,) = trajectory.sequences
    assert [bytes(image.data) for image in sequence.images] == [RED]
    assert "this:<image><image><image>[image]" in SEES.decode(policies.asked[-1].prompt, False)
    _, policies = episode(look, "Nothing.")
    assert "this:\n[image]\n[image]" in SEES.decode(policies.asked[-1].prompt, False)
    with pytest.raises(WorkflowError, match=r"images = true"):
        episode(look, "Nothing.", sees=False, max_images=1)


@pytest.mark.slow
def test_an_environment_shows_the_images_of_its_server() -> None:
    async def play(**keys: Any) -> list[Observation]:
        config = McpEnvironmentConfig(server={"command": DIAL}, reset="begin", **keys)
        environment = McpEnvironment(config, context("raas", Path("r")))
        shows = FunctionCall("id", "show", {"content": content("this:", RED)})
        try:
            seen = [await environment.reset(Prompt("p", {"prompt": "Look."}), 3)]
            return seen + [await environment.step(Action("", (shows, shows))) for _ in range(2)]
        finally:
            await environment.close()

    _, first, second = asyncio.run(play(max_images=3))
    image = [text_part("this:"), part(RED)]
    assert [message["content"] for message in first.messages] == [image, image]
    assert [message["content"] for message in second.messages] == [image, "this:\n[image]"]
    *_, unseen = asyncio.run(play())
    assert {message["content"] for message in unseen.messages} == {"this:\n[image]"}
