"""Prompt source ``jsonl``: a file with one JSON object per line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from astraflow_contrib_prompts.config import JsonLinesConfig
from astraflow_contrib_prompts.rows import FileOfRows, FileRow
from astraflow_core.errors import PromptError

_MAX_LINE = 64 << 20
"""Bytes: far more than a prompt, and little enough to be read before it is refused."""


class JsonLines(FileOfRows):
    """The prompts of a file. A prompt's id is its ``id``, if it has one, else ``line:NUMBER``. Empty lines are skipped."""

    use = "jsonl"
    expected = "one JSON object per line"

    def rows(self, config: JsonLinesConfig) -> Iterator[FileRow]:
        """The lines, read one at a time."""
        path = self.place(config)
        try:
            with opened(path, self.use) as file:
                for number, line in enumerate(iter(partial(file.readline, _MAX_LINE + 1), b""), 1):
                    if len(line) > _MAX_LINE:
                        raise PromptError(
                            f"{path}:{number}: a line of over {_MAX_LINE >> 20} MiB; expected one JSON object per line"
                        )
                    if line.strip():
                        yield FileRow(f"{path}:{number}", f"line:{number}", _object(line))
        except OSError as error:
            raise PromptError(
                f"prompt source 'jsonl' cannot read {path.absolute()}: {error.strerror}"
            ) from error


def _object(line: bytes) -> dict[str, Any] | ValueError:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.ValidationError as error:
        return ValueError(f"expected a JSON object: {error}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ValueError(f"not JSON: {error}")


def opened(path: Path, use: str) -> BinaryIO:
    """A file that is known to end: a device or a pipe may not."""
    if not path.is_file() and path.exists() and not path.is_dir():
        raise PromptError(f"prompt source {use!r}: {path.absolute()} is not a regular file")
    return path.open("rb")
