"""Engine ``sglang``: an SGLang server, a child or one that runs already, driven over its HTTP interface.

``engine`` is what the host calls and ``backend`` the server in use; ``server`` says how one is started and what
its last words mean; ``generation`` translates requests and answers; ``updates`` bring versions in; ``routes`` knows
what of SGLang is used.
"""
