"""Batches made by hand, with what a dataflow stamps on rows of whole groups."""

from __future__ import annotations

from astraflow_runtime.dataflow.rows.stamping import stamped

__all__ = ["stamped"]
