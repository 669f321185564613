"""Versions fetched: the receiver, its downloads, and the relay that serves what was verified."""
