"""A script that trains with Lightning, with firetrain's hook or without it, and saves the weights of rank 0."""

import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from firetrain.ddp import Reducer, hook


class Network(lightning.LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Hooked(DDPStrategy):
    """Lightning registers hooks on GPUs only, and says nothing elsewhere."""

    def configure_ddp(self) -> None:
        super().configure_ddp()
        if self.root_device.type == "cpu":
            self.model.register_comm_hook(self._ddp_comm_state, self._ddp_comm_hook)


def main(reduction: str, out: str) -> None:
    """Train a small network for ten steps."""
    lightning.seed_everything(1)
    strategy = DDPStrategy() if reduction == "none" else Hooked(ddp_comm_state=Reducer(reduction), ddp_comm_hook=hook)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    network = Network()
    images = torch.randn(160, 16, generator=torch.Generator().manual_seed(1))
    trainer.fit(network, DataLoader(TensorDataset(images), batch_size=8))
    if trainer.is_global_zero:
        torch.save(network.layers.state_dict(), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
