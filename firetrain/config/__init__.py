"""The config of a run: its schema, its loading with overrides, and one report of all its mistakes."""

from firetrain.config.load import Loaded, find_config, load_config, load_text, shipped_configs
from firetrain.config.schema import Config
from firetrain.config.validation import ConfigError

__all__ = ["Config", "ConfigError", "Loaded", "find_config", "load_config", "load_text", "shipped_configs"]
