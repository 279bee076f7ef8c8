"""What every rank of a test world imports; one process has done so, and each rank is forked from it."""

import torch  # noqa: F401
import torch._dynamo  # noqa: F401  # an optimizer's first step would import it
import torch.distributed.fsdp  # noqa: F401
