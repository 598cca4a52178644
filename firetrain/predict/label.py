"""What profiles call a model."""

from __future__ import annotations

from firetrain.config import Config


def model_label(config: Config) -> str:
    """Its name, with what changes its gradients or its work: heads, stem, batch norm, image size."""
    extras = {
        "auxiliary": config.model.auxiliary_heads, "small": config.model.stem == "small", "batch-norm": config.model.batch_norm,
    }  # fmt: skip
    return (
        "+".join([config.model.name, *(name for name, there in extras.items() if there)]) + f"@{config.data.image_size}"
    )
