"""The shipped configs, installed as firetrain.configs; the first line of each says which hardware it is meant for."""
