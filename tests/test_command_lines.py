"""Every command line that a document shows can be typed: the parser of the command accepts it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import ROOT, tracked_files

from astraflow_runtime.cli import parsed

BLOCK = re.compile(r"^ *```(?:sh|bash|console|text)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^ *(?:\$ )?(?:\.venv/bin/)?astraflow ([a-z].*)$", re.MULTILINE)
FORM = re.compile(r"…|\[-|<[a-z]|[a-z]\|[a-z]")
"""What stands in a line that shows a form instead of an example."""
ENDS = {"&&", "||", ";", "|", "&", ">", "2>", "<"}
OF_EXAMPLES = {"best-step"}
"""Commands of plugins under examples/, which the tests do not install."""


def command_lines() -> Iterator[tuple[Path, str]]:
    for file in tracked_files():
        if file.suffix == ".md" and "scaffold" not in file.parts:
            for block in BLOCK.findall(file.read_text(encoding="utf-8")):
                known = dict(re.findall(r'^(\w+)="(.*)"$', block, re.MULTILINE))
                for line in LINE.findall(block.replace("\\\n", " ")):
                    if not FORM.search(line):
                        yield file, re.sub(r"\$(\w+)", lambda m: known.get(m[1], "7"), line)  # noqa: B023


def words_of(line: str) -> list[str]:
    """What the shell hands over: up to the end of the command, with something for what another command says."""
    words = shlex.split(re.sub(r"\$\(.*?\)", "7", line), comments=True)
    end = next((at for at, word in enumerate(words) if word in ENDS), len(words))
    return words[:end]


def test_each_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, seen = [], 0
    for file, line in command_lines():
        words = words_of(line)
        if words[0] in OF_EXAMPLES:
            continue
        seen += 1
        try:
            parsed(words)
        except SystemExit as end:
            said = capsys.readouterr().err.strip().splitlines()[-1:]
            if end.code:
                wrong.append(f"{file.relative_to(ROOT)}: astraflow {line}: {said}")
    assert seen > 200
    assert not wrong, "\n".join(wrong)


def test_a_misspelt_option_is_noticed() -> None:
    assert words_of("status --run $(ls) | jq .  # as JSON") == ["status", "--run", "7"]
    with pytest.raises(SystemExit):
        parsed(words_of("status --rum one"))
