"""What is known about vLLM: when a server is ready, what its log and its metrics say, why it failed."""
