"""Deep Compression of a trained run: pruning, shared values and training in between, down to one small file."""
