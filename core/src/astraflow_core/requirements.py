"""What distributions need, read from their metadata: nothing is imported to find out."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

RUNTIME = "runtime"
"""The extra that holds the heavy backend of a plugin."""


def runtime_requirements(distribution: metadata.Distribution) -> list[Requirement]:
    """Requirements that only the ``[runtime]`` extra brings, for this interpreter and platform."""
    found = []
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # what pip could not have read either
            continue
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue
        if marker.evaluate({"extra": RUNTIME}):
            found.append(requirement)
    return found


def unsatisfied(requirements: list[Requirement]) -> Iterator[str]:
    """Each requirement that this environment does not meet, with what it has instead."""
    for requirement in requirements:
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield f"{wanted} (not installed)"
            continue
        try:
            fits = requirement.specifier.contains(version, prereleases=True)
        except InvalidVersion:
            fits = False
        if not fits:
            yield f"{wanted} ({version} is installed)"


def missing_runtime(distribution: metadata.Distribution | None) -> list[str]:
    """What the ``[runtime]`` extra of a distribution still lacks; empty if nothing or no such extra."""
    if distribution is None:
        return []
    return list(unsatisfied(runtime_requirements(distribution)))
