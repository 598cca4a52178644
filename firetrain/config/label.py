"""The names of models in profiles and in placement files."""

from __future__ import annotations

from firetrain.config.sections.data import DataSection
from firetrain.config.sections.model import ModelSection


def model_label(model: ModelSection, data: DataSection) -> str:
    """The name of a model with the options that change its gradients or its compute: heads, stem, batch norm, image size.

    Of a model of the user's own: the file without its folder, and the arguments.
    """
    if model.own:
        arguments = "".join(f"+{key}={value}" for key, value in (model.arguments or {}).items())
        return f"{model.own.without_folder}{arguments}@{data.image_size}"
    extras = {
        "auxiliary": model.auxiliary_heads, "small": model.stem == "small", "batch-norm": model.batch_norm,
    }  # fmt: skip
    return "+".join([model.name, *(name for name, there in extras.items() if there)]) + f"@{data.image_size}"
