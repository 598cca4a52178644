"""How the weights of a compressed model are coded, and its file."""
