"""Everything speculative but the arithmetic of verification."""
