"""Makes tiny Hugging Face model folders with random weights."""
