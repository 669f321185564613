"""Reward ``math_verify``: whether an answer equals the expected one as mathematics."""
