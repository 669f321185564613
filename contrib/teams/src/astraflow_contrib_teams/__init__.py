"""Workflows in which several roles, of one policy or of several, work on one task."""
