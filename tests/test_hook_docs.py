"""docs/hooks.md documents for every hook who calls it, when, and what may come back; its examples work as they stand there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pages.hook_docs import EXAMPLES, FIELDS, HookDoc
from workspace import ROOT

from astraflow_core.component import Kind
from astraflow_core.hookspecs import PROJECT, Lifecycle, Registration
from astraflow_core.types import RunInfo
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_testing.runs import User

SPECS = {
    name: specs
    for specs in (Registration, Lifecycle)
    for name in vars(specs)
    if name.startswith(f"{PROJECT}_")
}
KINDS = {kind.hook: kind for kind in Kind}


def block(hook: str) -> str:
    """The example of a hook as the page shows it."""
    page = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    section = page.partition(f"\n### `{hook}(")[2].partition("\n#")[0]
    found = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{hook} needs one example, in examples/hooks"
    return str(found[0])


@pytest.mark.parametrize("hook", SPECS)
def test_a_hook_says_who_calls_it_when_and_what_may_come_back(hook: str) -> None:
    common = HookDoc.of(SPECS[hook]).fields
    about = HookDoc.of(getattr(SPECS[hook], hook))
    wanted = FIELDS.keys() if hook in KINDS else FIELDS.keys() - {"built"}
    missing = wanted - (common | about.fields).keys()
    assert not missing, (
        f"{hook}: add the fields {sorted(missing)} to its docstring, as its neighbours have them"
    )
    assert about.text


def test_every_example_is_of_a_hook() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == SPECS.keys()


def test_an_unknown_field_is_refused() -> None:
    def documented() -> None:
        """A hook.

        :called: in one process,
            and in another
        :return: nothing
        """

    with pytest.raises(ValueError, match="unknown fields: return"):
        HookDoc.of(documented)


def test_the_order_of_calls_names_every_lifecycle_hook() -> None:
    told = HookDoc.of(Lifecycle).text
    missing = [name for name in SPECS if SPECS[name] is Lifecycle and f"`{name}`" not in told]
    assert not missing, f"say in the docstring of Lifecycle when it is called: {missing}"


@pytest.mark.parametrize("hook", SPECS)
def test_an_example_is_a_manifest(site: Any, hook: str) -> None:
    site.add("mine", f"{block(hook)}\nASTRAFLOW_API = (1, 0)\n")
    plugin = site.catalog().plugin("mine")
    assert plugin.healthy, plugin.problem
    if hook in KINDS:
        assert [kind for kind, _ in plugin.components] == [KINDS[hook]]
    elif SPECS[hook] is Lifecycle:
        assert plugin.hooks == (hook,)


Called = Callable[[Hooks, RunInfo, ModuleType], None]


def started(hooks: Hooks, run: RunInfo, module: ModuleType) -> None:
    hooks.run_started(run)
    assert len((run.directory / "processes.txt").read_text().split()) == 2


def ended(hooks: Hooks, run: RunInfo, module: ModuleType) -> None:
    hooks.run_ended(run, None)
    hooks.run_ended(run, OSError("no device"))
    assert (run.directory / "errors.txt").read_text() == "OSError: no device\n"


def step(hooks: Hooks, run: RunInfo, module: ModuleType) -> None:
    hooks.step_ended(run, 1, {"loss": 0.5})
    hooks.step_ended(run, 2, {"skipped": 1.0})
    assert (run.directory / "loss.csv").read_text() == "1,0.5\n2,nan\n"


def published(hooks: Hooks, run: RunInfo, module: ModuleType) -> None:
    hooks.weights_published(run, "solver", 3)
    assert (run.directory / "newest-solver.txt").read_text() == "3"


def chosen(hooks: Hooks, run: RunInfo, module: ModuleType) -> None:
    near, far = (SimpleNamespace(same_host=same) for same in (True, False))
    choice = hooks.choose_transport(run, "e", "t", near)  # type: ignore[arg-type]
    assert (choice.use, choice.why) == ("shm", "all ends are on one host")  # type: ignore[union-attr]
    assert hooks.choose_transport(run, "e", "t", far) is None  # type: ignore[arg-type]


def routed(hooks: Hooks, run: RunInfo, module: ModuleType) -> None:
    app = FastAPI()
    for router in hooks.routes("raas"):
        app.include_router(router)
    assert TestClient(app).get("/v1/team").json() == {"team": "maths", "service": "raas"}


def wrapped(hooks: Hooks, run: RunInfo, module: ModuleType) -> None:
    metrics = hooks.train_step(run, 0, None, lambda: {"loss": 0.5})  # type: ignore[arg-type]
    assert metrics.keys() == {"loss", "wrapped_s"} and metrics["wrapped_s"] >= 0


def viewed(hooks: Hooks, run: RunInfo, module: ModuleType) -> None:
    turns = [{"role": "prompt", "text": "go"}, {"role": "assistant", "text": "left"}]
    (view,) = hooks.views({"workflow": {"use": "mine"}, "turns": turns})
    assert view["rows"] == [[0, "left"]]
    assert hooks.views({"workflow": {"use": "other"}, "turns": turns}) == []


CALLS: dict[str, Called] = {
    "astraflow_run_started": started,
    "astraflow_run_ended": ended,
    "astraflow_step_ended": step,
    "astraflow_weights_published": published,
    "astraflow_choose_transport": chosen,
    "astraflow_routes": routed,
    "astraflow_views": viewed,
    "astraflow_train_step": wrapped,
}


@pytest.mark.parametrize("hook", CALLS)
def test_an_example_of_the_lifecycle_does_what_it_says(
    site: Any, tmp_path: Path, hook: str
) -> None:
    site.add("mine", f"{block(hook)}\nASTRAFLOW_API = (1, 0)\n")
    plugin = site.catalog().plugin("mine")
    run = RunInfo("r", 0, 1, 0, ("solver",), tmp_path)
    CALLS[hook](Hooks([plugin]), run, plugin.module)


def test_the_example_of_a_model_reference_leaves_other_schemes_alone(site: Any) -> None:
    site.add("mine", f"{block('astraflow_resolve_model')}\nASTRAFLOW_API = (1, 0)\n")
    module = site.catalog().plugin("mine").module
    assert module.astraflow_resolve_model("shared:qwen", 0, None, True) == Path("/srv/models/qwen")
    assert module.astraflow_resolve_model("pypi:qwen", 0, None, True) is None
    assert ModelResolver(site.catalog())._resolvers[0].name == "mine"


def test_plugins_are_called_in_reverse_name_order_unless_they_ask(
    site: Any, tmp_path: Path
) -> None:
    source = """
        from astraflow_core import hookimpl
        ASTRAFLOW_API = (1, 0)

        @hookimpl{how}
        def astraflow_run_started(run):
            with (run.directory / "order").open("a") as file:
                print("{name}", file=file)
    """
    for name, how in {"a": "", "b": "(trylast=True)", "c": "", "d": ""}.items():
        site.add(name, source.format(name=name, how=how))
    hooks = Hooks(site.catalog().plugin(name) for name in "abcd")
    hooks.run_started(RunInfo("r", 0, 1, 0, (), tmp_path))
    assert (tmp_path / "order").read_text().split() == ["d", "c", "a", "b"]


EAR = """
    import os
    import sys

    from astraflow_core import hookimpl

    ASTRAFLOW_API = (1, 0)


    def note(what):
        role = next((word for word in ("dataflow", "raas", "trainer") if word in sys.argv), "run")
        with open(os.environ["HEARD"], "a") as file:
            print(role, what, file=file)


    @hookimpl
    def astraflow_choose_transport(ends):
        note("choose_transport")
        return "http"


    @hookimpl(tryfirst=True)
    def astraflow_resolve_model(reference):
        note("resolve_model")


    @hookimpl
    def astraflow_run_started(run):
        note("run_started")


    @hookimpl
    def astraflow_routes(service):
        note(f"routes")


    @hookimpl
    def astraflow_weights_published(version):
        note(f"weights_published {version}")


    @hookimpl(wrapper=True)
    def astraflow_train_step(step):
        note(f"train_step {step}")
        return (yield)


    @hookimpl
    def astraflow_step_ended(step):
        note(f"step_ended {step}")


    @hookimpl
    def astraflow_run_ended(error):
        note(f"run_ended {error}")
"""


@pytest.mark.slow
def test_a_run_calls_them_in_the_order_that_the_page_tells(site: Any, user: User) -> None:
    site.add("ear", EAR)
    file = user.directory / "heard"
    user.environment["HEARD"] = str(file)
    user.environment["PYTHONPATH"] = f"{site.folder}:{user.environment['PYTHONPATH']}"
    ended = user.run_table(
        "run.steps=2", 'plugins.enable=["ear"]', "policies.solver.transport.use=auto"
    )
    assert ended.exit_code == 0, ended.text
    lines = [line.split(" ", 1) for line in file.read_text().splitlines()]
    assert lines[:3] == [
        ["run", each] for each in ("choose_transport", "resolve_model", "run_started")
    ]
    assert lines[-1] == ["run", "run_ended None"]
    of = {
        role: [what for who, what in lines[3:-1] if who == role]
        for role in ("dataflow", "raas", "trainer")
    }
    assert of["dataflow"] == of["raas"] == ["run_started", "routes", "run_ended None"]
    assert of["trainer"] == [
        "run_started",
        "weights_published 0",
        *("train_step 0", "weights_published 1", "step_ended 1"),
        *("train_step 1", "weights_published 2", "step_ended 2"),
        "run_ended None",
    ]
    assert sum(map(len, of.values())) == len(lines) - 4
