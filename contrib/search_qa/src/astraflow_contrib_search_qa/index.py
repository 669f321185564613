"""An index of passages: a file that is made once on a host, and read by all that search there."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from astraflow_contrib_search_qa.passages import Corpus, Passage, passages
from astraflow_core.config.environments import cache_folder
from astraflow_core.errors import PromptError

_MOST_WORDS = 32
_FORM = 1
"""Of the file; one of another form is made anew."""


@dataclass(frozen=True, slots=True)
class PassageIndex:
    """An index that is open for reading."""

    connection: sqlite3.Connection

    def search(self, query: str, top: int) -> list[Passage]:
        """The ``top`` passages that match words of the query best (bm25; the title counts twice); none of its characters
        is an operator. Equals come in the order of the corpus."""
        words = re.findall(r"\w+", query.lower())[:_MOST_WORDS]
        if not words:
            return []
        escaped = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
        rows = self.connection.execute(
            "SELECT title, text FROM passages WHERE passages MATCH ? ORDER BY bm25(passages, 2.0, 1.0), rowid LIMIT ?",
            (escaped, top),
        )
        return [Passage(title, text) for title, text in rows]

    def close(self) -> None:
        """Close it."""
        self.connection.close()


def opened(corpus: Corpus) -> PassageIndex:
    """The index of a corpus; built if it does not exist on this host. :class:`PromptError` if it has no passages."""
    file = cache_folder() / "search_qa" / f"{_identity(corpus)}.sqlite"
    if not file.exists():
        _make(file, passages(corpus))
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    return PassageIndex(connection)


def _identity(corpus: Corpus) -> str:
    """Of what the passages are made from: the same corpus has one index, and a file that has changed another."""
    facts = [str(_FORM), sqlite3.sqlite_version, json.dumps(dict(corpus), sort_keys=True)]
    for key, name in (("folder", "passages.jsonl"), ("wheel", "")):
        if key in corpus:
            path = Path(str(corpus[key])) / name
            try:
                state = path.stat()
            except OSError as error:
                raise PromptError(
                    f"passages cannot be read from {path}: {error.strerror}"
                ) from error
            facts.append(f"{state.st_size} {state.st_mtime_ns}")
    return blake2b("\n".join(facts).encode(), digest_size=12).hexdigest()


def _make(file: Path, found: list[Passage]) -> None:
    """Write next to it and then rename, so that no reader sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, suffix=".new")
    os.close(descriptor)
    try:
        connection = sqlite3.connect(name)
        connection.execute("PRAGMA journal_mode = off")
        connection.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(title, text, tokenize = 'porter unicode61')"
        )
        rows = ((passage.title, passage.text) for passage in found)
        connection.executemany("INSERT INTO passages VALUES (?, ?)", rows)
        connection.execute("INSERT INTO passages(passages) VALUES ('optimize')")
        connection.commit()
        connection.close()
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
