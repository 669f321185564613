"""Plays environments: on the event loop, or in worker processes that may hang and die."""
