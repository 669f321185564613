"""What is no observation is named, and never an error of the code that looks at it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Observation
from astraflow_environments.observations import checked

ASKED = ({"role": "user", "content": "left or right?"},)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"metrics": None}, "gave the metrics None"),
        ({"metrics": [1.0]}, r"gave the metrics \[1.0\]"),
        ({"metrics": {1: 1.0}}, "metrics whose names are not texts"),
        ({"metrics": {"a": 10**400}}, "metrics that are not finite"),
        ({"metrics": {"a": float("nan")}}, "metrics that are not finite"),
        ({"messages": 5}, "gave the messages 5"),
        ({"messages": "left or right?"}, "gave the messages 'left or right"),
        ({"messages": ({"role": "user", "content": object()},)}, "content is not text"),
        ({"messages": ({"role": "user", "content": 3},)}, "content is not text"),
        ({"tools": None}, "gave the tools None"),
        ({"reward": None}, "gave the reward None"),
        ({"reward": 10**400}, "gave the reward 1000"),
        ({"reward": np.array([1.0, 2.0])}, "gave the reward array"),
        ({"reward": "1"}, "gave the reward '1'"),
        ({"role": []}, r"says that \[\] acts next"),
    ],
)
def test_what_an_environment_may_not_say_is_named(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvironmentFailed, match=reason) as failed:
        checked(Observation(**{"messages": ASKED, "reward": 0.0, **given}), False, ())
    assert failed.value.kind == "malformed"


@pytest.mark.parametrize("content", [None, "", [{"type": "text", "text": "left?"}]])
def test_every_form_of_content_that_chats_have_is_one(content: Any) -> None:
    half: Any = np.float32(0.5)
    said = Observation(({"role": "user", "content": content},), half, metrics={"n": 2})
    seen = checked(said, False, ())
    assert (seen.messages, seen.reward, seen.metrics) == (said.messages, 0.5, {"n": 2.0})
