"""Decides who runs in a step; knows nothing about tensors."""
