"""A training that the tests of terrace.torch do with several optimizers."""

import copy

import torch

import terrace.torch as tt
import terrace.torch.optimizer
from terrace.torch.optimizer import TieredOptimizer

torch.set_num_threads(1)
terrace.torch.optimizer.cores_are_busy = lambda: False  # or no update would run under a forward on one core
STEPS = 50
MICRO_BATCHES = 4
WIDTH = 64


def make_model(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 96), torch.nn.GELU(), torch.nn.LayerNorm(96),
                               torch.nn.Linear(96, 32)).to(dtype)


def groups_of(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 5e-3}]


class Training:
    """A training of 50 steps of 4 micro-batches, with two groups, a schedule, and clipping that acts in some steps."""

    def __init__(self, make_optimizer, dtype=torch.float32, clips=True):
        self.clips = clips
        self.model = make_model(dtype)
        self.make_optimizer = make_optimizer
        self.optimizer = make_optimizer(self.model)
        self.dtype = dtype
        self.norms = []

    def run(self, until=STEPS, stop=None):
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for step in range(until):
            if step == stop:
                self.restart()
            for group, rate in zip(self.optimizer.param_groups, rates):
                group["lr"] = rate / (1 + step / 20)
            self.one_step(step)
        getattr(self.optimizer, "finish_step", lambda: None)()
        return [p.detach().clone() for p in self.model.parameters()]

    def one_step(self, step):
        random = torch.Generator().manual_seed(step)
        for number in range(MICRO_BATCHES):
            if isinstance(self.optimizer, TieredOptimizer):
                self.optimizer.set_is_last_backward(number == MICRO_BATCHES - 1)
            x = torch.randn(8, WIDTH, generator=random).to(self.dtype)
            y = (1 + step % 3) * torch.randn(8, 32, generator=random).to(self.dtype)
            (((self.model(x) - y) ** 2).mean() / MICRO_BATCHES).backward()
        if isinstance(self.optimizer, torch.optim.AdamW):
            limit = 1.0 if self.clips else float("inf")
            self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)))
        self.optimizer.step()
        if not isinstance(self.optimizer, torch.optim.AdamW):
            self.norms.append(self.optimizer.grad_norm)
        self.optimizer.zero_grad()

    def restart(self):
        weights, state = copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.optimizer.state_dict())
        self.model = make_model(self.dtype)
        self.model.load_state_dict(weights)
        self.optimizer = self.make_optimizer(self.model)
        self.optimizer.load_state_dict(state)


def ours(max_grad_norm=1.0, **more):
    return lambda model: tt.AdamW(groups_of(model), lr=1e-2, max_grad_norm=max_grad_norm,
                                  model=model if more.get("updates") == "forward" else None, **more)
