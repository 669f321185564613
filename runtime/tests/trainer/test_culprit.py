"""Errors of a trainer's process name the component whose code raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astraflow_core.config.models import PolicyTable
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.trainer.culprit import describe, owners

LOSS = """
import json

def advantages(text):
    return json.loads(text)
"""
HOOKED = """
@hookimpl
def astraflow_step_ended(run, step, metrics):
    raise KeyError("loss")

@hookimpl
def astraflow_algorithms():
    return [Component("mine", "mine_parts.loss:advantages", "a loss")]
"""


def caught(call: Any, *arguments: Any, **named: Any) -> Exception:
    try:
        call(*arguments, **named)
    except Exception as error:  # noqa: BLE001 (what the test is about)
        return error
    raise AssertionError("nothing was raised")


def table(site: Any, run_file: Path) -> tuple[Any, PolicyTable]:
    loaded = load_config(run_file, ["policies.solver.algorithm.use=mine"])
    return loaded.catalog, loaded.config.policies["solver"]


def test_the_innermost_component_is_named_with_file_and_line(
    site: Any, run_file: Path, manifest: str
) -> None:
    package = site.folder / "mine_parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "loss.py").write_text(LOSS)
    site.add("mine", manifest + HOOKED)
    catalog, policy = table(site, run_file)
    known = owners(catalog, policy)
    from mine_parts.loss import advantages  # type: ignore[import-not-found]

    told = describe(caught(advantages, "no json"), known)
    assert told.startswith(
        "algorithm 'mine' of fake-mine 1.0 raised JSONDecodeError: Expecting value"
    )
    assert told.endswith(f"({package / 'loss.py'}:5 in advantages)")
    hook = catalog.plugin("mine").module.astraflow_step_ended
    told = describe(caught(hook, run=None, step=1, metrics={}), known)
    assert told.startswith("plugin 'mine' (fake-mine 1.0) raised KeyError: 'loss'")


def test_an_error_outside_of_plugins_has_its_place(site: Any, run_file: Path) -> None:
    told = describe(caught(int, "x"), [])
    assert told.startswith("ValueError: invalid literal") and "test_culprit.py:" in told
