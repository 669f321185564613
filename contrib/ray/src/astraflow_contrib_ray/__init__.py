"""A launcher for Ray clusters."""
