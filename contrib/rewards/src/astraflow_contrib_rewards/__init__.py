"""Rewards that compare a completion with the prompt's answer: as text, as a number."""
