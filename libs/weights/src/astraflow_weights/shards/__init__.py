"""Versions published by several ranks, each of which exports its own blocks."""
