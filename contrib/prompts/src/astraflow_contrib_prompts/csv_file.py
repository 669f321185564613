"""Prompt source ``csv``: a file whose first row names the columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from astraflow_contrib_prompts.config import CsvConfig
from astraflow_contrib_prompts.jsonl import opened
from astraflow_contrib_prompts.rows import FileOfRows, FileRow
from astraflow_core.errors import PromptError


class Csv(FileOfRows):
    """The prompts of a table; all values are texts. A prompt's id is its ``id``, if there is such a column, else
    ``line:NUMBER`` of the line at which its row ends."""

    use = "csv"
    expected = "a row of column names and one row per prompt"

    def rows(self, config: CsvConfig) -> Iterator[FileRow]:
        """The rows, read one at a time; one may span lines."""
        path, number = self.place(config), 0
        try:
            with opened(path, self.use) as file:
                text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
                table = csv.reader(text, delimiter=config.delimiter, strict=True)
                names = next(table, [])
                number = table.line_num
                twice = sorted({name for name in names if names.count(name) > 1})
                if twice or not all(names):
                    raise PromptError(
                        f"{path}:1: the columns are {', '.join(map(repr, names)) or 'none'}; expected a name for each, "
                        "and none twice"
                    )
                for fields in table:
                    number = table.line_num
                    if fields:
                        yield FileRow(f"{path}:{number}", f"line:{number}", _values(names, fields))
        except OSError as error:
            raise PromptError(
                f"prompt source 'csv' cannot read {path.absolute()}: {error.strerror}"
            ) from error
        except UnicodeDecodeError as error:
            raise PromptError(
                f"{path}:{number + 1}: not UTF-8 at or after this line: {error.reason}"
            ) from error
        except csv.Error as error:
            raise PromptError(f"{path}: not CSV after line {number}: {error}") from error


def _values(names: list[str], fields: list[str]) -> dict[str, str] | ValueError:
    if len(fields) != len(names):
        return ValueError(f"has {len(fields)} fields; expected {len(names)}: {', '.join(names)}")
    return dict(zip(names, fields, strict=True))
