"""Environments of Gymnasium with observations and actions as text."""
