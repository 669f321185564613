"""An agent without any knowledge of AstraFlow plays the episode; it samples through the gateway."""
