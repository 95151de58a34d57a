"""Block ids and their hashes; knows nothing about tensors."""
