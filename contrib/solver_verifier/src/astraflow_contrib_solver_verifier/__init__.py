"""Two policies in one episode: a solver answers, a verifier marks the answer."""
