"""What both halves call the same."""

from __future__ import annotations

OBJECT = "collective"
"""Side object of a version that says, in JSON, where its round is joined."""
