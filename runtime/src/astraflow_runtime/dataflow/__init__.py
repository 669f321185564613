"""The dataflow service: prompts, tasks, trajectories, batches and versions.

State lives in plain synchronous classes that take the time as an argument and do no network I/O;
``service`` puts HTTP on top, ``main`` builds it all from a config.
"""
