"""Configurations of other systems, made ours."""
