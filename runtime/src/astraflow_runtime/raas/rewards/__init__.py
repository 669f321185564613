"""Rewards: on the event loop, or in workers that may hang and die."""
