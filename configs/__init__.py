"""The shipped configs, installed as firetrain.configs; the first line of each names the hardware that it is meant for."""
