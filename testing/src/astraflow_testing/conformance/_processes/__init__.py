"""Code of a plugin and its process: hangs, crashes, a blocked event loop, and leftovers."""
