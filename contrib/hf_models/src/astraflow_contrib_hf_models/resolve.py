"""Fetches a model of the hub once; afterwards it is a snapshot in the Hugging Face cache, pinned to its commit."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from astraflow_core.component import load_attribute
from astraflow_core.errors import PreflightError
from astraflow_core.types import ResolvedModel
from astraflow_wire.host.disk import says_full

_REFERENCE = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^@\s]+))?")
_READ = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors"]
_ELSEWHERE = ["*/*"]
"""Copies of the same weights for other programs lie in folders."""


def resolve(reference: str, fetch: bool) -> ResolvedModel | None:
    """The snapshot of ``reference``, ``None`` if it is not whole in the cache and not to be fetched. Raises
    :class:`PreflightError` that names what is missing and what to do."""
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise PreflightError(
            f"model {reference!r} is not a reference to the hub; expected 'hf:OWNER/NAME' or 'hf:OWNER/NAME@REVISION'"
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise PreflightError(
            f"model {reference!r} is fetched with huggingface_hub, which is not installed: "
            "pip install 'astraflow-contrib-hf-models[runtime]'"
        )
    name, revision = found["name"], found["revision"]
    began = time.monotonic()
    found_now = _fetched(reference, name, revision, fetch)
    if found_now is None:
        return None
    folder, fetched = found_now
    if fetched:
        _print_progress(reference, f"ready in {folder} after {time.monotonic() - began:.0f} s")
    return ResolvedModel(folder, f"hf:{name}@{folder.name}")


def _fetched(
    reference: str, name: str, revision: str | None, may_fetch: bool
) -> tuple[Path, bool] | None:
    """The snapshot, and whether anything of it had to be fetched."""
    tqdm: Any = load_attribute("huggingface_hub.utils:tqdm")
    download: Any = load_attribute("huggingface_hub:snapshot_download")

    class Quiet(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **keys: Any) -> None:
            super().__init__(*args, **{**keys, "disable": True})

    def fetch(revision: str | None, bar: type = Quiet, **how: Any) -> Any:
        patterns = {"allow_patterns": _READ, "ignore_patterns": _ELSEWHERE}
        return download(name, revision=revision, tqdm_class=bar, **patterns, **how)

    try:
        if (cached := _cached(fetch, revision, may_fetch)) is not None:
            return cached, False
        if not may_fetch:
            return None
        planned = _planned(fetch, revision)
        missing = [file for file in planned if file.will_download]
        if not missing:
            return Path(fetch(planned[0].commit_hash if planned else revision)), False
        commit = missing[0].commit_hash
        _announce(reference, commit, [file.file_size or 0 for file in missing])
        return Path(fetch(commit, tqdm if sys.stderr.isatty() else Quiet)), True
    except PreflightError:
        raise
    except Exception as error:
        library = type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "huggingface_hub")
        if not (library or isinstance(error, OSError)):
            raise
        raise PreflightError(f"model {reference!r}: {_why(error, name, revision)}") from error


def _planned(fetch: Any, revision: str | None) -> list[Any]:
    """What a download would fetch; nothing if the hub cannot be reached, as it may not be needed."""
    from huggingface_hub.errors import DryRunError

    try:
        planned: list[Any] = fetch(revision, dry_run=True)
    except DryRunError:
        return []
    return planned


def _cached(fetch: Any, revision: str | None, may_fetch: bool) -> Path | None:
    """The snapshot, where nothing has to or may be asked: of a commit that is whole in the cache, and offline."""
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = revision is not None and re.fullmatch("[0-9a-f]{40}", revision)
    if may_fetch and not (commit or constants.HF_HUB_OFFLINE):
        return None
    try:
        return Path(fetch(revision, local_files_only=True))
    except LocalEntryNotFoundError:
        if may_fetch and constants.HF_HUB_OFFLINE:
            raise
        return None


def _announce(reference: str, commit: str, sizes: list[int]) -> None:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    total, free = sum(sizes), shutil.disk_usage(cache).free
    if total > free:
        raise PreflightError(f"model {reference!r}: {_no_room(total, free)}")
    _print_progress(reference, f"fetching {len(sizes)} files, {_size(total)}, of commit {commit}")


def _why(error: Exception, name: str, revision: str | None) -> str:
    """What a person can do about an error of the hub."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"it is gated: accept its terms at {page}, then `hf auth login` or set HF_TOKEN to a token of the account "
            "that did"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{constants.ENDPOINT} has no {name!r}, or it is private: check the name; a private one needs `hf auth login` "
            "or HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision!r}; {page}/tree/main lists branches and tags"
    if constants.HF_HUB_OFFLINE:
        return (
            f"it is incomplete in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids fetching it: unset that, or "
            "`hf download` it where there is a network and copy the cache"
        )
    if says_full(error):
        return _no_room()
    return (
        f"{constants.ENDPOINT} could not be asked for it, or ended the download ({_first_line(error)}); files that are "
        "whole are kept, and the same command fetches the rest. Without a network, `hf download` it elsewhere, copy the cache "
        f"{constants.HF_HUB_CACHE} and set HF_HUB_OFFLINE=1"
    )


def _no_room(needed: int | None = None, free: int | None = None) -> str:
    from huggingface_hub import constants

    sizes = (
        f": {_size(needed)} are needed, {_size(free)} are free"
        if needed and free is not None
        else ""
    )
    return (
        f"the disk of the cache {constants.HF_HUB_CACHE} is full{sizes}; free some space (`hf cache ls`), or set HF_HOME to a "
        "folder with more. Files that are whole are kept"
    )


def _first_line(error: Exception) -> str:
    """Of an error, or what it came from: the library wraps a lost connection into a page of advice."""
    first = error.__cause__ or error
    return f"{type(first).__name__}: {(str(first) or 'no reason').strip().splitlines()[0]}"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _print_progress(reference: str, what: str) -> None:
    """A line for the person who waits; there is no live view yet when models are resolved."""
    sys.stderr.write(f"{reference}: {what}\n")
    sys.stderr.flush()
