"""HTTP only: knows JSON and status codes, not tokens."""
