"""Environments of Gymnasium, told in text."""
