"""Prompt sources ``parquet`` and ``dataset_folder``: tables of Apache Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from astraflow_contrib_prompts.config import DatasetFolderConfig, ParquetConfig, RowsConfig
from astraflow_contrib_prompts.rows import FileOfRows, FileRow
from astraflow_contrib_prompts.templates import keys_of
from astraflow_core.errors import PromptError

_BATCH = 512


class Parquet(FileOfRows):
    """The prompts of a file, or of the files of a folder by their names, read batch by batch. A prompt's id is its ``id``,
    if there is such a column, else ``row:NUMBER`` over all files, from 1."""

    use = "parquet"
    expected = "rows in *.parquet"

    def rows(self, config: ParquetConfig) -> Iterator[FileRow]:
        """The rows of all files."""
        path = self.place(config)
        files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        yield from _rows(files, config, self.use)


class DatasetFolder(FileOfRows):
    """The prompts of what ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` of Hugging Face datasets wrote. A
    prompt's id is its ``id``, if there is such a column, else ``row:NUMBER``, from 1."""

    use = "dataset_folder"
    expected = "rows in the data files that state.json names"

    def rows(self, config: DatasetFolderConfig) -> Iterator[FileRow]:
        """The rows of all data files, in the order of ``state.json``."""
        folder = self.place(config)
        parts = _json(folder / "dataset_dict.json").get("splits")
        if parts is not None and config.part not in parts:
            raise PromptError(
                f"{folder} has the parts {', '.join(map(repr, parts))}; name one: part = {parts[0]!r}"
                if parts
                else f"{folder} has no parts"
            )
        if parts is None and config.part:
            raise PromptError(
                f"{folder} has no parts, or is not a dataset; leave out part = {config.part!r}"
            )
        folder = folder / config.part
        entries = _json(folder / "state.json").get("_data_files")
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise PromptError(
                f"prompt source 'dataset_folder': {folder.absolute()} has no state.json with data files; expected is a "
                'folder that save_to_disk wrote. Of *.parquet: use = "parquet"'
            )
        files = [folder / Path(str(entry.get("filename"))).name for entry in entries]
        yield from _rows(files, config, self.use)


def _json(file: Path) -> dict[str, Any]:
    """What is in a file; nothing if it does not exist."""
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PromptError(f"{file}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise PromptError(f"{file}: expected a JSON object")
    return found


def _rows(files: list[Path], config: RowsConfig, use: str) -> Iterator[FileRow]:
    try:
        import pyarrow
    except ImportError as error:
        raise PromptError(
            f"prompt source {use!r} needs pyarrow ({error}): pip install 'astraflow-contrib-prompts[arrow]'"
        ) from error
    total = 0
    for file in files:
        before = total
        try:
            for batch in _batches(file, config):
                for values in batch.to_pylist():
                    total += 1
                    yield FileRow(f"{file}: row {total - before}", f"row:{total}", values)
        except (pyarrow.ArrowException, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise PromptError(
                f"prompt source {use!r} cannot read {file.absolute()} after row {total - before}: {reason}"
            ) from error


def _batches(file: Path, config: RowsConfig) -> Iterator[Any]:
    """The needed columns of a file, a few rows at a time."""
    import pyarrow as pa
    from pyarrow import parquet

    if file.suffix != ".arrow":
        with parquet.ParquetFile(file) as table:
            columns = _columns(file, table.schema_arrow, config)
            yield from table.iter_batches(_BATCH, columns=columns)
        return
    with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
        columns = _columns(file, stream.schema, config)
        for batch in stream:
            for start in range(0, batch.num_rows, _BATCH):
                yield batch.select(columns).slice(start, _BATCH)


def _columns(file: Path, schema: Any, config: RowsConfig) -> list[str]:
    """The columns that are read; :class:`PromptError` names one that no prompt's data can hold."""
    named = [config.id_key, config.answer_key, *keys_of(config.template)]
    named += [] if config.template else [config.prompt_key]
    named += config.keep or ()
    wanted = {part for key in named for part in (key, key.partition(".")[0])}
    chosen = [name for name in schema.names if config.keep is None or name in wanted]
    for name in chosen:
        if strange := _strange(schema.field(name).type):
            raise PromptError(
                f"{file}: column {name!r} has values of type {strange}, which are not text, numbers, lists or objects"
                f"{' (an image?)' if 'binary' in strange else ''}; name the columns that prompts need: keep = […]"
            )
    return chosen


def _strange(kind: Any) -> str:
    """A type within this one that JSON does not have; empty if there is none."""
    from pyarrow import types

    if types.is_struct(kind):
        inner = [kind.field(index).type for index in range(kind.num_fields)]
    elif any(
        check(kind)
        for check in (
            types.is_list,
            types.is_large_list,
            types.is_fixed_size_list,
            types.is_dictionary,
        )
    ):
        inner = [kind.value_type]
    else:
        known = (
            types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean, types.is_null
        )  # fmt: skip
        return "" if any(check(kind) for check in known) else str(kind)
    return next(filter(None, map(_strange, inner)), "")
