"""Follows the files of a run and sends what is new to its trackers, each in a separate process."""
