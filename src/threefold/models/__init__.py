"""Which layers, in which order, and the weights that fill them."""
