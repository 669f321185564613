"""Engine ``sglang``: an SGLang server that runs already, driven over its own HTTP interface.

``engine`` is the asynchronous face; ``session`` is the server in use, its version and what is at it;
``generation`` translates requests and answers; ``client`` makes the calls.
"""
