"""Compiled CPU bodies of the ops."""
