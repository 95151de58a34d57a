"""Runs the loop; token ids only, except at its text edge."""
