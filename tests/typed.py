"""A small config as a user types it, and the mistakes that are reported."""

from __future__ import annotations

import pytest

from firetrain.config import ConfigError, load_text

SMALL = """\
name: small
model: {name: lenet}
data: {name: digits, image_size: 16}
batch: {global_size: 32}
learning_rate: {base: 1e-4}
"""


def mistakes(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, "my.yaml", overrides)
    return str(caught.value).splitlines()
