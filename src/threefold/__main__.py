"""`python -m threefold` is the `threefold` command."""

import sys

from threefold.cli import main

if __name__ == "__main__":
    sys.exit(main())
