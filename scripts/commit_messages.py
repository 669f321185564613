#!/usr/bin/env python3
"""Check that commit messages begin with ``type(scope): what``: that in a file, as the hook commit-msg gives it, or
those of the commits since the main branch. Where there is no main branch to compare with, nothing is checked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TYPES = ("feat", "fix", "perf", "refactor", "test", "docs", "build")
BASES = ("upstream/main", "origin/main")
"""Where the main branch may be; the first that exists counts."""
MADE_BY_GIT = ("Merge ", "fixup! ", "squash! ", "amend! ")
"""Beginnings of messages that a hook lets pass: what they head is merged, or melted into another commit."""

_SUBJECT = re.compile(rf"(?:{'|'.join(TYPES)})(?:\([a-z0-9][a-z0-9_.,/-]*\))?!?: \S.*(?<![.\s])")


def problem(message: str) -> str:
    """What is wrong with a message; empty if nothing is."""
    subject, *rest = message.splitlines() or [""]
    if not _SUBJECT.fullmatch(subject):
        return f"expected 'type(scope): what' or 'type: what' without a full stop, with a type of {', '.join(TYPES)}"
    if rest and rest[0].strip():
        return "expected an empty line between the first line and the body"
    return ""


def commits(root: Path) -> dict[str, str]:
    """Short hash → message of each commit since the main branch, without merges."""
    base = next((base for base in BASES if _git(root, "rev-parse", "--verify", "-q", base)), None)
    # Without a common commit, as in a shallow clone, all that is there would look new.
    if base is None or not _git(root, "merge-base", base, "HEAD"):
        return {}
    log = _git(root, "log", "--no-merges", "--reverse", "--format=%h%x00%B%x00", f"{base}..HEAD")
    parts = log.split("\0")[:-1]
    return {commit.strip(): text for commit, text in zip(parts[::2], parts[1::2], strict=True)}


def _git(root: Path, *arguments: str) -> str:
    """What git prints; empty if it fails, as where there is no repository."""
    done = subprocess.run(
        ("git", "-C", str(root), *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""


def _without_comments(text: str) -> str:
    """What git keeps of a message from an editor."""
    lines = text.partition("\n# ------------------------ >8 ------------------------\n")[0]
    return "\n".join(line for line in lines.splitlines() if not line.startswith("#")).strip()


def main(arguments: list[str]) -> int:
    """Check one message or the commits; returns the exit code."""
    if arguments:
        message = _without_comments(Path(arguments[0]).read_text(encoding="utf-8"))
        messages = {} if message.startswith(MADE_BY_GIT) else {"commit message": message}
    else:
        messages = commits(ROOT)
    wrong = 0
    for name, message in messages.items():
        if told := problem(message):
            wrong += 1
            print(f"{name}: {message.partition(chr(10))[0]!r}: {told}", file=sys.stderr)
    if wrong:
        print("CONTRIBUTING.md, Commits, has the rule.", file=sys.stderr)
    elif not arguments:
        print(f"{len(messages)} commits since the main branch")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
