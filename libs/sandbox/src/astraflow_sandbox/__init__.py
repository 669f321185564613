"""Runs programs that a policy wrote."""
