"""A policy, or a team of several, plays an environment turn by turn."""
