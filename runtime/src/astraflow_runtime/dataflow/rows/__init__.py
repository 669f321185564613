"""Rows: from an accepted group to the batch of a trainer."""
