"""Logits to tokens, and drafts to accepted tokens."""
