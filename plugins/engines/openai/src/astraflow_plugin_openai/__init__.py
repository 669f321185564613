"""Engine ``openai``: a model behind any OpenAI-compatible server, used as it is.

``engine`` finds the model and asks what the server can do; ``backend`` makes the requests, ``patience`` makes
them again; ``completions`` translates requests and answers, by token ids or by text.
"""
