"""What runs in the sandboxed interpreter: the standard library only, and nothing of this workspace beside this folder."""
