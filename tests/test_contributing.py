"""The files that a contributor, a reporter and their tools read are whole, and repeat nothing."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import dev
import pytest
import tool
import yaml
from workspace import ROOT

HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_instructions_for_agents_are_those_for_all_contributors() -> None:
    lines = (ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 and "(CONTRIBUTING.md)" in lines[2], "write it into CONTRIBUTING.md"


def test_hooks_use_the_tools_of_the_environment() -> None:
    stages = set()
    for repository in HOOKS["repos"]:
        assert repository["repo"] == "local", "versions stand in constraints.txt only"
        for hook in repository["hooks"]:
            python, script, *arguments = shlex.split(hook["entry"])
            assert hook["language"] == "system" and python == "python3"
            assert (ROOT / script).is_file(), script
            if script == "scripts/dev.py":
                assert callable(getattr(dev, arguments[0])), arguments
            stages |= set(hook.get("stages", HOOKS["default_stages"]))
    assert stages == set(HOOKS["default_install_hook_types"])


def test_a_tool_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setattr(dev, "setup", became.append)
    monkeypatch.setattr("os.execv", lambda *command: became.append(command))
    tool.main(["ruff", "check", "x.py"])
    assert became == ["test", (dev.PYTHON, [str(dev.PYTHON), "-m", "ruff", "check", "x.py"])]


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_a_form_has_what_the_page_of_issues_needs(file: Path) -> None:
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    if file.stem == "config":
        assert form.keys() <= {"blank_issues_enabled", "contact_links"}
        return
    assert form["name"] and form["description"]
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    identifiers = [each["id"] for each in fields]
    assert fields and len(set(identifiers)) == len(identifiers)
    assert all(each["attributes"]["label"] for each in fields)
    assert any(each.get("validations", {}).get("required") for each in fields)


def test_security_names_modules_and_files_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    modules = re.findall(r"`(astraflow_[\w.]+)`", text)
    files = re.findall(r"`(tests/\w+\.py)`", text)
    assert len(modules) > 4 and files
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    assert [name for name in files if not (ROOT / name).is_file()] == []
