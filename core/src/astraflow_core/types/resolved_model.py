"""What became of a model reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The local Hugging Face ``folder`` of a reference, and ``pinned``: a reference that gives the same files whenever it is
    resolved, such as one with a commit."""

    folder: Path
    pinned: str
