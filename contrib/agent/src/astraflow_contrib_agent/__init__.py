"""An agent that knows nothing of AstraFlow plays the episode; it samples through the gateway."""
