"""Data policies: what to do about old samples, short of dropping them."""
