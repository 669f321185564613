"""Code of a plugin and its process: a hang, a crash, a blocked loop, and what it leaves behind."""
