"""Shared parts of the suite of trackers."""
