"""The simplest episode: one prompt, one completion, of one policy."""
