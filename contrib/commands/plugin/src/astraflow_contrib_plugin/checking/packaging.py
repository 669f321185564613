"""What a distribution says of itself: manifest, requirements, licence, description, types, keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from astraflow_contrib_plugin.checking.programs import TookTooLong, run_module
from astraflow_contrib_plugin.checking.result import CheckResult, judged, not_checked
from astraflow_contrib_plugin.checking.target import CheckedTarget
from astraflow_core.installed.requirements import all_requirements, applies, unsatisfied
from astraflow_runtime.cli.installation.links import left_out

_DEADLINE_S = 120.0
_SHORTEST_README = 200
_LONGEST_LICENCE = 60
_CORE = "astraflow-core"


def look_at(target: CheckedTarget, work: Path) -> tuple[dict[str, Any], CheckResult]:
    """What the distribution registers, and whether it can be used."""
    file = work / "registered.json"
    try:
        ended = run_module(
            "astraflow_contrib_plugin.checking.probe",
            [target.name, str(file)],
            work,
            target.site,
            _DEADLINE_S,
        )
    except TookTooLong as error:
        return {"plugins": []}, judged(
            "manifest", "", [f"importing the manifest or a target: {error}"]
        )
    if ended.code or not file.is_file():
        said = "; ".join(ended.lines[-2:]) or f"exit code {ended.code}"
        return {"plugins": []}, judged("manifest", "", [f"importing the manifest ended: {said}"])
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found, judged("manifest", _registered(found), list(_manifest_problems(found)))


def _registered(found: dict[str, Any]) -> str:
    parts = []
    for plugin in found["plugins"]:
        parts += [f"{c['kind']} {c['name']}" for c in plugin["components"]]
        parts += [f"command {name}" for name in plugin["commands"]]
        parts += [f"hook {name}" for name in plugin["hooks"]]
    return ", ".join(parts)


def _manifest_problems(found: dict[str, Any]) -> Iterator[str]:
    if not found["plugins"]:
        why = found["unregistered"] or ["it has no entry point in the group 'astraflow'"]
        yield f"{why[0]}; docs/write-a-plugin.md shows one"
    for plugin in found["plugins"]:
        if plugin["problem"]:
            yield f"plugin {plugin['name']!r}: {plugin['problem']}"
        elif not (plugin["components"] or plugin["commands"] or plugin["hooks"]):
            yield f"plugin {plugin['name']!r} registers nothing"
        for component in plugin["components"]:
            yield from component["problems"]


def packages_of(found: dict[str, Any]) -> list[Path]:
    """The folders of the packages with the manifests."""
    return sorted({Path(plugin["package"]) for plugin in found["plugins"] if plugin["package"]})


def check_requirements(target: CheckedTarget) -> CheckResult:
    """The core with a range of versions, and everything that is needed is here."""
    needed = [r for r in all_requirements(target.metadata) if applies(r, "")]
    problems = [str(unmet) for unmet in unsatisfied(needed)]
    core = [r for r in needed if r.name.lower().replace("_", "-") == _CORE]
    if not core:
        problems.append(f"{_CORE} is not among its requirements")
    elif not any(s.operator in ("<", "<=", "==", "~=") for s in core[0].specifier):
        problems.append(
            f"{core[0]} allows a core with another plugin API: add an upper bound, as in {_CORE}>=0.1,<0.2"
        )
    return judged("requirements", ", ".join(map(str, needed)), problems)


def check_licence(target: CheckedTarget) -> CheckResult:
    """A licence is named, and its text is in the distribution."""
    classifiers = [c for c in _fields(target, "Classifier") if c.startswith("License ::")]
    named = _fields(target, "License-Expression") or _fields(target, "License") or classifiers
    files = _fields(target, "License-File")
    problems = []
    if not named:
        problems.append(
            'pyproject.toml has no licence: set license = "Apache-2.0" in [project], or another'
        )
    if not files:
        problems.append(
            'the text of the licence is not in the distribution: license-files = ["LICENSE"]'
        )
    short = " ".join("; ".join(named).split())[:_LONGEST_LICENCE]
    return judged("licence", f"{short}, {', '.join(files)}", problems)


def check_readme(target: CheckedTarget) -> CheckResult:
    """A description for those who consider it."""
    text = str(target.metadata.metadata.json.get("description", "")).strip()
    problems = []
    if not text:
        problems.append('it has no README: readme = "README.md" in [project]')
    elif len(text) < _SHORTEST_README:
        problems.append(
            f"its README has {len(text)} characters: say what it does, when to use it, its keys and its limits"
        )
    if not _fields(target, "Summary"):
        problems.append("it has no description in [project]")
    unseen = "".join(f"; an index leaves out {link}" for link in left_out(target.metadata.metadata))
    return judged("readme", f"{len(text.split())} words{unseen}", problems)


def _fields(target: CheckedTarget, name: str) -> list[str]:
    """The values of a field of the metadata."""
    return [str(value) for value in target.metadata.metadata.get_all(name) or () if value]


def check_typed(packages: list[Path]) -> CheckResult:
    """``py.typed``, by which type checkers read the annotations."""
    missing = [p.name for p in packages if not (p / "py.typed").is_file()]
    return judged("py.typed", "", [f"{name} has no file py.typed" for name in missing])


def check_types(
    target: CheckedTarget, packages: list[Path], work: Path, deadline_s: float
) -> CheckResult:
    """``mypy --strict``, with the settings in the source folder if there is one. What is installed is named as packages, and
    mypy runs in ``work``: in the folder of installed packages it would take each of them for one of the user's."""
    from importlib.util import find_spec

    if find_spec("mypy") is None:
        return not_checked("mypy", "mypy is not installed: pip install mypy")
    arguments = ["--strict", "--no-error-summary", "--no-color-output"]
    if target.source is None:
        arguments += ["--config-file=", "--cache-dir=/dev/null"]
        arguments += [part for package in packages for part in ("-p", package.name)]
    else:
        own = target.source / "src"
        arguments += [str(own / p.name if (own / p.name).is_dir() else p) for p in packages]
    try:
        ended = run_module("mypy", arguments, target.source or work, target.site, deadline_s)
    except TookTooLong as error:
        return judged("mypy", "", [str(error)])
    if ended.code > 1 or ended.code < 0:
        return judged("mypy", "", [f"mypy ended with {ended.code}", *ended.lines[-3:]])
    wrong = [line for line in ended.lines if ": error:" in line] if ended.code else []
    for package in packages:
        wrong = [line.replace(f"{package.parent}/", "") for line in wrong]
    return judged("mypy", "no error with --strict", wrong)


def check_keys(found: dict[str, Any]) -> CheckResult:
    """Every key says what it means."""
    bare = [
        f"{component['kind']} {component['name']!r}: the key {key!r} has no description"
        for plugin in found["plugins"]
        for component in plugin["components"]
        for key in component["undescribed"]
    ]
    return judged("keys", "every key has a description", bare)
