"""Prompts of a source in a new interpreter."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import xxhash

from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_testing.conformance._processes.interpreter import ask
from astraflow_testing.conformance.subject import SubjectRecipe, context, installed

MOST = 64
DEADLINE_S = 50.0
_DIALS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname")

Facts = list[Any]
"""Length of a source, and for some indices ``[index, id, digest of its data]``."""


def facts(source: PromptSource) -> Facts:
    """Facts about a source, from :data:`MOST` of its prompts."""
    found: Facts = [len(source)]
    for index in range(0, len(source), max(1, len(source) // MOST)):
        prompt = source[index]
        data = json.dumps(prompt.data, sort_keys=True, default=repr).encode()
        found.append([index, prompt.id, xxhash.xxh3_64_hexdigest(data)])
    return found


def elsewhere(recipe: SubjectRecipe, folder: Path, hash_seed: int) -> tuple[list[Facts], list[str]]:
    """The facts of each variant in a new process with another seed of hashes, and what imports dialled; raises
    :class:`~astraflow_testing.conformance._processes.interpreter.InterpreterFailed`."""
    question = [recipe.kind, recipe.use, list(recipe.variants), str(folder)]
    found, dialled = ask(f"from {__name__} import answer", question, DEADLINE_S, hash_seed)
    return found, dialled


def _importing() -> str:
    """The module whose import is under way; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap" and "spec" in frame.f_locals:
            return str(getattr(frame.f_locals["spec"], "name", ""))
        frame = frame.f_back
    return ""


def _is_network(event: str, arguments: Sequence[Any]) -> bool:
    if event not in _DIALS:
        return False
    return event != "socket.connect" or isinstance(arguments[1], tuple)


def answer(recipe: list[Any]) -> tuple[list[Facts], list[str]]:
    """Make the sources of a recipe: what :func:`facts` finds, and who was called over the network while a module was
    being imported."""
    kind, use, variants, folder = recipe
    dialled: list[str] = []

    def watch(event: str, arguments: Sequence[Any]) -> None:
        if _is_network(event, arguments) and (module := _importing()):
            dialled.append(f"{event} {arguments[-1]!r:.80} by the import of {module}")

    sys.addaudithook(watch)
    subject = installed(kind, use, *variants)
    built = [factory(context("dataflow", Path(folder))) for factory in subject.variants.values()]
    return [facts(source) for source in built], dialled
