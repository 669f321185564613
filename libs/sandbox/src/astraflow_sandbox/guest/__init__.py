"""What runs in the sandboxed interpreter: the standard library only, and nothing of this workspace except this folder."""
