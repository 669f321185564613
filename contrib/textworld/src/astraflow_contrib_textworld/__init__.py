"""Games of TextWorld."""
