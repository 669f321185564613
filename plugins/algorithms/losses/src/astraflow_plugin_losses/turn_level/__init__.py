"""Algorithms with rewards per turn: one module each, and what they share."""
