"""Trackers in processes of their own, and what they share."""
