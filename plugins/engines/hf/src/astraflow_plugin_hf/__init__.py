"""Engine ``hf``: the continuous batching of transformers, with its scheduler and its paged cache.

``engine`` is the asynchronous face; ``batching`` holds the model and the thread that decodes; ``sampler`` chooses
the tokens and keeps what belongs to each.
"""
