"""Processes of one interpreter that import once: forks of a process that has imported what they need."""
