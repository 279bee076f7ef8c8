"""A loop with accelerate: `accelerate_loop.py 1` for FSDP, `accelerate_loop.py 2` for FSDP2."""

import sys
import time

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

version = int(sys.argv[1])
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=version,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    use_orig_params=True,
    reshard_after_forward="FULL_SHARD" if version == 1 else True,
)
accelerator = Accelerator(fsdp_plugin=plugin)
torch.manual_seed(0)
shape = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2, "num_hidden_layers": 3, "vocab_size": 51}
model = LlamaForCausalLM(LlamaConfig(**shape, attn_implementation="eager", tie_word_embeddings=False))
tokens = torch.randint(0, 51, (32, 9), generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(tokens), batch_size=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for step, (batch,) in enumerate(loader, 1):
    optimizer.zero_grad()
    loss = model(input_ids=batch, labels=batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    mean = accelerator.reduce(loss.detach().clone(), "mean")
    if accelerator.is_main_process:
        print("loss", step, mean.item().hex(), flush=True)
time.sleep(0.3)  # gloo's thread may hold the last tensor a moment longer, and an exit meanwhile aborts
accelerator.end_training()
