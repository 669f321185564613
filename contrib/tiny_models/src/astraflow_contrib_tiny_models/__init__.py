"""Model references ``tiny:``: small random models, made when a run starts."""
