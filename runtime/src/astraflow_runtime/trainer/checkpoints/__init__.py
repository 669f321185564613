"""Checkpoints and final models of a trainer."""
