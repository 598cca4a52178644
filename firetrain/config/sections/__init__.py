"""The sections of a config, one file each, with keys, types, defaults and bounds."""
