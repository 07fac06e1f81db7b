"""Start a build under a server: containers by digest, or processes."""
