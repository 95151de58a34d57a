"""One rank: tensors start here."""
