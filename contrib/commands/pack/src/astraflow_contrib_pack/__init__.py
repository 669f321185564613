"""AstraFlow commands pack and unpack."""
