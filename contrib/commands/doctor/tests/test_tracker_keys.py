"""What the keys of a tracker say of this machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from astraflow_contrib_doctor.preflight import check_trackers


class NoKey:
    def trouble(self) -> str:
        return "there is no API key"


def test_a_tracker_that_lacks_something_is_a_warning_and_never_a_problem() -> None:
    keys: dict[str, Any] = {"plain": None, "quiet": object(), "online": NoKey()}
    loaded: Any = SimpleNamespace(
        config=SimpleNamespace(trackers=dict.fromkeys(keys)),
        components={f"trackers.{name}": (None, each) for name, each in keys.items()},
    )
    found = {finding.subject: finding for finding in check_trackers(loaded)}
    assert found["tracker plain"].level == found["tracker quiet"].level == "ok"
    online = found["tracker online"]
    assert (online.level, online.text) == ("warning", "there is no API key") and online.fix
