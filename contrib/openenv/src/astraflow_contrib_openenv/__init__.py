"""Environments that servers of OpenEnv hold."""
