"""The experts of a model, and which of them tokens went through."""
