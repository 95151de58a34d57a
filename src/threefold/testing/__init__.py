"""Fakes that ship with the package, without torch."""
