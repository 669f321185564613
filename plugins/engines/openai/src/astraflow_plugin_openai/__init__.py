"""Engine ``openai``: any OpenAI-compatible server as a frozen model (judge, teacher, opponent).

``engine`` is the asynchronous face; ``completions`` translates requests and answers, by token ids or by
text; ``client`` makes the calls.
"""
