"""Two policies in one episode: a solver answers, a verifier checks the answer."""
