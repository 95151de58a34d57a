"""Writes quantised checkpoints, and says how much of the model's quality they keep."""
