"""Lightning's Trainer: `lightning_trainer.py fsdp` or `lightning_trainer.py model_parallel` (FSDP2)."""

import sys
import time

import lightning
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(15, 31), nn.ReLU(), nn.Linear(31, 15))


class Regression(lightning.LightningModule):
    def configure_model(self):
        if hasattr(self, "net"):
            return
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(7, 15), Block(), Block(), nn.Linear(15, 3))
        if sys.argv[1] == "model_parallel":
            mesh = self.device_mesh["data_parallel"]
            for block in self.net[1:3]:
                fully_shard(block, mesh=mesh)
            fully_shard(self.net, mesh=mesh)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        mean = self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")
        if self.global_rank == 0:
            print("loss", index + 1, mean.item().hex(), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main():
    strategy = (
        FSDPStrategy(auto_wrap_policy={Block}, use_orig_params=True)
        if sys.argv[1] == "fsdp"
        else ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    )
    chance = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 7, generator=chance), torch.randn(64, 3, generator=chance))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=4))
    time.sleep(0.3)  # gloo's thread may hold the last tensor a moment longer, and an exit meanwhile aborts


if __name__ == "__main__":
    main()
