"""One op, one file: contract, torch reference, choice of body."""
