"""Load generation and honest comparison."""
