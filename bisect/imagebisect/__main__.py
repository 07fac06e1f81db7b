"""`python -m imagebisect` is the command `bisect`."""

from __future__ import annotations

from imagebisect.cli import main

if __name__ == "__main__":
    main()
