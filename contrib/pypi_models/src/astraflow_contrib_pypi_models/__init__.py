"""Model references ``pypi:``: small language models that lie in wheels of a package index."""
