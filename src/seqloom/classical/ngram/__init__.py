"""N-gram language models: Kneser–Ney estimation, backoff queries, ARPA files."""
