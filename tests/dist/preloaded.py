"""What every rank of a test world imports; one process has done so, and each rank is forked from it."""

import torch
import torch._dynamo  # an optimizer's first step would import it
import torch.distributed.fsdp  # noqa: F401
