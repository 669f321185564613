"""Household tasks in text, after AlfWorld."""
