"""Rewards composed of others, and parts for them: rewards for format, length and a judge's verdict."""
