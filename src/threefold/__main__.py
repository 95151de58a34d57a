"""`python -m threefold` is the `threefold` command."""

from threefold.cli import main

if __name__ == "__main__":
    main()
