"""Find the first vLLM image that breaks throughput or memory.

Imports nothing: the stand-in server runs from this package in images that hold
only an interpreter (see `imagebisect.simulator`).
"""

__version__ = "0.1.0"
