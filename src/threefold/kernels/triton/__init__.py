"""CUDA bodies of the ops, in Triton; contract and torch reference stand in `kernels/<op>.py`."""
