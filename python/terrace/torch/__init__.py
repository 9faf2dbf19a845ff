"""Optimizers for PyTorch whose state is exact and lives in host memory or on NVMe, and models whose parameters and
activations live there too.

    import terrace.torch as tt
    model = tt.offload(model, host_memory="8GiB", nvme="/nvme")   # where it does not fit
    optimizer = tt.AdamW(model.parameters(), lr=1e-5, max_grad_norm=1.0, state="nvme", nvme="/nvme")

Importing changes nothing in torch. Terrace's docs/embedding-python.md describes the whole package.
"""

from terrace.torch.offload import materialize, offload
from terrace.torch.pretrained import load_pretrained, parameters_on_meta
from terrace.torch.rules import SGD, AdamW, Lion
from terrace.torch.trainer import attach

__all__ = ["SGD", "AdamW", "Lion", "attach", "load_pretrained", "materialize", "offload",
           "parameters_on_meta"]
