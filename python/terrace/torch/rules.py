"""AdamW, Lion and SGD, updated by Terrace."""

import torch

from terrace import library as lib
from terrace.torch.optimizer import TieredOptimizer


class AdamW(TieredOptimizer):
    """AdamW with the arguments of torch.optim.AdamW. TieredOptimizer describes the other arguments.

    arithmetic="torch" does the operations of torch.optim.AdamW(foreach=False, fused=False), and clips as
    torch.nn.utils.clip_grad_norm_ does. The bits of fp32 parameters are torch's where torch's square roots are
    correctly rounded, and within 2 units in the last place of a step elsewhere. "terrace" does the operations of the
    program terrace, whose norm is summed in fp64 and whose bits are the same on every processor."""

    fields = ("exp_avg", "exp_avg_sq")

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, arithmetic="torch",
                 **tiered):
        if arithmetic not in ("torch", "terrace"):
            raise lib.ArgumentError(f"arithmetic={arithmetic!r}: give 'torch' or 'terrace'")
        self.rule = "torch_adamw" if arithmetic == "torch" else "adamw"
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **tiered)

    def _clipping(self):
        if self.rule == "adamw" or self.max_grad_norm == 0:
            return super()._clipping()
        norm = torch.nn.utils.get_total_norm(self._gradients(), 2.0, foreach=False)
        coefficient = float(torch.clamp(self.max_grad_norm / (norm + 1e-6), max=1.0))
        if not torch.isfinite(norm) or coefficient == 0:  # beyond the range of fp32
            return super()._clipping()
        return {"gradient_scale": coefficient, "known_norm": float(norm) * coefficient}, float(norm)

    @staticmethod
    def hyperparameters_of(group):
        return {"adam_beta1": group["betas"][0], "adam_beta2": group["betas"][1], "adam_epsilon": group["eps"]}


class Lion(TieredOptimizer):
    """Lion (Chen et al., 2023). TieredOptimizer describes the other arguments."""

    rule = "lion"
    fields = ("exp_avg",)

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, **tiered):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, **tiered)

    @staticmethod
    def hyperparameters_of(group):
        return {"lion_beta1": group["betas"][0], "lion_beta2": group["betas"][1]}


class SGD(TieredOptimizer):
    """torch.optim.SGD with momentum, without dampening and Nesterov's form. TieredOptimizer describes the other
    arguments."""

    rule = "sgd"
    fields = ("momentum_buffer",)

    def __init__(self, params, lr=1e-3, momentum=0.9, weight_decay=0.0, **tiered):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, **tiered)

    @staticmethod
    def hyperparameters_of(group):
        return {"sgd_momentum": group["momentum"]}
