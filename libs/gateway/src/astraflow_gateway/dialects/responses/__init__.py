"""OpenAI's responses, whose conversation is a list of items that the server may keep."""
