"""Output of commands: tables and plain lines, or one JSON document."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from astraflow_runtime.telemetry.printable import printable

Lines = Iterable[str]


def print_line(text: str = "", file: TextIO | None = None) -> None:
    """Print a line with control characters escaped, and flush: text from a service or a file is
    untrusted.
    """
    print(printable(text), file=file, flush=True)


def print_json(value: Any) -> None:
    """Print one indented JSON document."""
    print_line(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns; on a terminal the last column is cut at its width."""
    table = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in table:
        line = "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        print_line(line if limit is None or len(line) <= limit else f"{line[: limit - 1]}…")


def print_tree(value: Any, indent: str = "") -> None:
    """Nested JSON as indented lines; a list of like tables as a table."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Mapping | list) and item:
                print_line(f"{indent}{key}:")
                print_tree(item, f"{indent}  ")
            else:
                print_line(f"{indent}{key}: {_scalar(item)}")
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                flat = ", ".join(f"{key} {_scalar(part)}" for key, part in item.items())
                print_line(f"{indent}- {flat}")
            else:
                print_line(f"{indent}- {_scalar(item)}")
    else:
        print_line(f"{indent}{_scalar(value)}")


def _scalar(value: Any) -> str:
    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_scalar(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    return str(value)
