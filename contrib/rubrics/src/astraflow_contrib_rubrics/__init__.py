"""Rewards made of others, and rewards of form, length and a judge's verdict to make them of."""
