"""Views of plugins, made by a process that may hang."""
