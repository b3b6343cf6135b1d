"""What the server of `tests.training.gloo` loads once: everything that a training process needs."""

# ruff: noqa: F401
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor

import dspark.training.run
import tests.training.tiny
