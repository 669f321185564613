"""Helpers for a process on its host: parent, clock, memory, private files."""
