"""Transport ``cuda_ipc``: engines on the trainer's GPU map its copy of a version, verify it and take it over.

``publisher`` offers each version by HTTP too; ``offers`` keeps the copy on the GPU while an engine has a ticket for it.
"""
