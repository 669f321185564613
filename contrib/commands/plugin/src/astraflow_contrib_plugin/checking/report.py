"""A whole check: its results one after the other, and the report that its author may publish."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

from astraflow_contrib_plugin.checking import packaging
from astraflow_contrib_plugin.checking.layering import check_layering
from astraflow_contrib_plugin.checking.result import CheckResult, not_checked
from astraflow_contrib_plugin.checking.suites import SuiteRuns, check_suites
from astraflow_contrib_plugin.checking.target import CheckedTarget
from astraflow_core.installed.requirements import all_requirements
from astraflow_runtime.cli.installation.check_report import digest_of, digest_of_files, verdict_of
from astraflow_runtime.cli.installation.links import links_of
from astraflow_runtime.telemetry.printable import printable

FORMAT = 1
_LONGEST_SUMMARY = 512
_TOOLS = (
    "astraflow-core", "astraflow-runtime", "astraflow-testing", "hypothesis", "mypy", "numpy", "pydantic", "pytest",
)  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid #8884; }
.failed { color: #c33; font-weight: 600; }
code { overflow-wrap: anywhere; }
"""


class PluginCheck:
    """A check of one distribution. ``results`` yields each result as soon as it is known, and fills the rest."""

    def __init__(self, target: CheckedTarget, work: Path, deadline_s: float) -> None:
        self._target, self._work, self._deadline_s = target, work, deadline_s
        self._found: dict[str, Any] = {"plugins": []}
        self._runs = SuiteRuns()
        self._packages: list[Path] = []
        self._results: list[CheckResult] = []

    def results(self) -> Iterator[CheckResult]:
        """Make all checks."""
        for result in self._each():
            self._results.append(result)
            yield result

    def _each(self) -> Iterator[CheckResult]:
        target = self._target
        self._found, manifest = packaging.look_at(target, self._work)
        self._packages = packaging.packages_of(self._found)
        yield manifest
        yield packaging.check_requirements(target)
        yield packaging.check_licence(target)
        yield packaging.check_readme(target)
        if not self._packages:
            for name in ("layering", "py.typed", "mypy", "keys", "tests", "conformance", "mutants"):
                yield not_checked(name, "its package is unknown: see manifest")
            return
        yield check_layering(self._packages, target.tests)
        yield packaging.check_typed(self._packages)
        yield packaging.check_types(target, self._packages, self._work, self._deadline_s)
        yield packaging.check_keys(self._found)
        self._runs, results = check_suites(target, self._found, self._work, self._deadline_s)
        yield from results

    @property
    def verdict(self) -> str:
        """See :func:`astraflow_runtime.cli.installation.check_report.verdict_of`."""
        return verdict_of([result.verdict for result in self._results])

    def report(self) -> dict[str, Any]:
        """The report, of plain JSON values and without times: checks of the same files with the same versions have the
        same digest."""
        report = {
            "format": FORMAT,
            "distribution": self._described(),
            "files": digest_of_files(self._packages),
            "plugins": [
                {
                    "name": plugin["name"],
                    "api": plugin["api"],
                    "components": [
                        {"kind": c["kind"], "name": c["name"], "capabilities": c["capabilities"]}
                        for c in plugin["components"]
                    ],
                    "commands": plugin["commands"],
                    "hooks": plugin["hooks"],
                }
                for plugin in self._found["plugins"]
            ],
            "core_api": self._found.get("core_api"),
            "checks": [
                {
                    "name": result.name,
                    "verdict": result.verdict,
                    "summary": result.summary,
                    "problems": [self._portable(line) for line in result.problems],
                }
                for result in self._results
            ],
            "suites": self._runs.suites,
            "versions": self._versions(),
            "verdict": self.verdict,
        }
        return report | {"digest": digest_of(report)}

    def _described(self) -> dict[str, Any]:
        """What an index shows of the distribution, from its metadata."""
        fields = self._target.metadata.metadata
        summary = printable(" ".join((fields.get_all("Summary") or [""])[0].split()))
        named = {"name": self._target.name, "version": self._target.version}
        return {**named, "summary": summary[:_LONGEST_SUMMARY], "links": links_of(fields)}

    def _portable(self, line: str) -> str:
        """Without the folders of this machine."""
        for folder in filter(None, [self._target.site, self._target.source, self._work]):
            line = line.replace(f"{folder}/", "")
        return line

    def _versions(self) -> dict[str, str]:
        versions = {"python": platform.python_version()}
        for name in sorted({*_TOOLS, *(r.name for r in all_requirements(self._target.metadata))}):
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return versions


def as_html(report: dict[str, Any]) -> str:
    """The report as one page, without scripts and requests to other hosts."""
    what = f"{report['distribution']['name']} {report['distribution']['version']}"
    rows = "".join(
        f'<tr><th scope="row">{escape(check["name"])}</th><td class="{escape(check["verdict"]).replace(" ", "-")}">'
        f"{escape(check['verdict'])}</td><td>"
        + "<br>".join(escape(line) for line in (check["summary"], *check["problems"]))
        + "</td></tr>\n"
        for check in report["checks"]
    )
    versions = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(version)}</td></tr>\n'
        for name, version in report["versions"].items()
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(what)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(what)}: {escape(report['verdict'])}</h1>\n<table>\n{rows}</table>\n"
        f"<h2>Versions</h2>\n<table>\n{versions}</table>\n"
        f"<p>Digest of the report: <code>{escape(report['digest'])}</code></p>\n</body>\n</html>\n"
    )
