"""Places that whoever started a RaaS grants it by a named pipe."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from astraflow_runtime.raas.admission import AdmissionLimit
from astraflow_runtime.raas.granted_places import PLACES, GrantedPlaces


def test_the_newest_line_counts_and_none_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "places"
    os.mkfifo(path)

    async def follow() -> list[int]:
        granted, seen = GrantedPlaces(str(path)), list[int]()
        heard = asyncio.Event()

        def changed(places: int) -> None:
            seen.append(places)
            heard.set()

        granted.changed = changed
        granted.follow()
        assert granted.yielding  # before the first line
        writer = os.open(path, os.O_WRONLY)
        for text in (b"3\n16\n", b"1", b"2\n", b""):
            heard.clear()
            if text:
                os.write(writer, text)
            else:
                os.close(writer)
            if text != b"1":  # half a line is none
                await asyncio.wait_for(heard.wait(), 20)
                assert granted.yielding == (text == b"")
        return seen

    assert asyncio.run(follow()) == [16, 12, 0]


def test_a_raas_of_its_own_devices_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLACES, raising=False)
    assert GrantedPlaces.of_process() is None


def test_a_grant_bounds_the_limit_and_is_no_reason_to_forget_it() -> None:
    limit = AdmissionLimit(64, 8)
    limit.granted = 12
    assert limit.limit == 12
    limit.observe(60, {"p": {"running": 16.0, "waiting": 44.0}})
    limit.observe(60, {"p": {"running": 16.0, "waiting": 44.0}})
    limit.granted = 64
    assert limit.limit == 20
