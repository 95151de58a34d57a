"""Measure first, then decide: a load's portrait, a simulator with the real scheduler, and a verdict for every lever."""
