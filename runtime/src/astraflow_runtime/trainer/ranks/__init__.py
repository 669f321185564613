"""Trainers of several ranks: how ranks meet, and how rank 0 leads the others."""
