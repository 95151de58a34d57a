"""CUDA bodies of the ops, in Triton: one file an op; contract and torch reference stand in `kernels/<op>.py`."""
