"""What AdamW, Lion and SGD of terrace.torch share: TieredOptimizer."""

import math
import os

import torch

from terrace import library as lib
from terrace.session import Session, directories_of
from terrace.torch.gradients import give_gradients_to, has_several_ranks, tensor_buffer
from terrace.torch.groups import SessionGroups
from terrace.torch.state import SavedState
from terrace.torch.waiting import ParameterWaits


class TieredOptimizer(SessionGroups, SavedState, torch.optim.Optimizer):
    """What AdamW, Lion and SGD share. Beside torch's own arguments:

    max_grad_norm   gradients whose norm over all parameters is larger are scaled down to it, exactly; 0: never.
                    Takes the place of torch.nn.utils.clip_grad_norm_, which finds no gradients here.
    state           where the state lives: "host", "nvme", or "auto" (host memory first)
    host_memory     what the optimizer may use of it, as "8GiB"; None: what is free
    nvme            directory on a drive, or several, for state that lives there
    updates         "step": step() returns when all parameters are updated. "forward": step() returns at once,
                    and the next forward of each module of `model` waits for that module's parameters. Who
                    reads a parameter outside its module's forward calls finish_step() first
    model           the torch.nn.Module whose parameters these are; names them, too
    take_gradients  True: each gradient is added up in fp32 as soon as backward has it, and .grad is None again.
                    False: gradients stay in .grad until step(), as what works on them needs (DDP, GradScaler,
                    hooks of others). None: False where torch.distributed runs several ranks, else True.
                    What was taken is forgotten by zero_grad() of the optimizer, not by that of the model
    threads         threads of an update; 0: as many as the process may use

    Parameters in 16 bits have an fp32 master among the state. Parameters are on the CPU and dense. A parameter
    that is frozen at the first step stays so. `grad_norm` is the norm of the last step, before clipping."""

    rule = ""
    fields = ()           # what the rule keeps, under torch's names

    def __init__(self, params, defaults, *, max_grad_norm=0.0, state="host", host_memory=None, nvme=(),
                 updates="step", model=None, take_gradients=None, threads=0):
        if updates not in ("step", "forward"):
            raise lib.ArgumentError(f"updates={updates!r}: give 'step' or 'forward'")
        if updates == "forward" and model is None:
            raise lib.ArgumentError("updates='forward' needs model=, whose forward waits for its parameters")
        self.max_grad_norm = float(max_grad_norm or 0.0)
        if not 0 <= self.max_grad_norm < math.inf:
            raise lib.ArgumentError(f"max_grad_norm={max_grad_norm}: give more than 0, or 0 for no clipping")
        self._must_be_alone = take_gradients is None  # asked for by nobody, and wrong with several ranks
        self._takes_gradients = not has_several_ranks() if take_gradients is None else take_gradients
        self._updates_under_forward = updates == "forward"
        self._names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
        self._session_options = {"state": state, "host_memory": host_memory, "nvme": nvme, "threads": threads}
        Session(**self._session_options).close()  # says at once what cannot be
        for directory in directories_of(nvme):
            if not os.path.isdir(directory):
                raise lib.ArgumentError(f"nvme: {os.fsdecode(directory)} is not a directory")
        self._session = None
        self._tensors = {}       # id of a parameter: its number in the session
        self._addresses = {}     # id of a parameter: where it was then
        self._settings = []      # of each group, as the session has them
        self._has_gradients = False
        self._is_stepping = False
        self._grad_norm = None
        self._known_norm = None
        self._own_settings = tuple(defaults)
        super().__init__(params, defaults)
        if self._updates_under_forward:
            self._check_model()
        self._waits = ParameterWaits(self, model) if self._updates_under_forward else None

    # ---- parameters and gradients ------------------------------------------------------------------------

    def add_param_group(self, param_group):
        if getattr(self, "_session", None) is not None:
            raise lib.OrderError("a group cannot be added after the first backward: make a new optimizer, and load "
                                 "the state of this one with the groups that it has")
        super().add_param_group(param_group)
        if self._takes_gradients:
            give_gradients_to([p for p in self.param_groups[-1]["params"] if p.requires_grad], self)

    def _take(self, parameter):
        """Adds a parameter's gradient to what the session has of it, and takes it away."""
        gradient, parameter.grad = parameter.grad, None
        if gradient is None or parameter.numel() == 0:
            return
        self.finish_step()
        session = self._session or self._ready_session()
        number = self._tensors.get(id(parameter))
        if number is None:
            raise lib.OrderError(f"{self._name_of(parameter)} has a gradient and was frozen at the first step: make "
                                 "a new optimizer where other parameters train")
        if gradient.layout != torch.strided:
            raise lib.UnsupportedError(f"the gradient of {self._name_of(parameter)} is sparse: use "
                                       "sparse=False in its embedding")
        dense = gradient.contiguous()
        session.add_gradient(number, tensor_buffer(dense, lambda: f"the gradient of {self._name_of(parameter)}"))
        self._has_gradients = True

    # ---- a step ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure=None):
        """Updates the parameters that have gradients. Raises what terrace.library has; NotFiniteError where a
        gradient is infinite or NaN: then nothing was updated."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.finish_step()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._take(parameter)
        if not self._has_gradients:
            return loss
        self._check_unchanged()
        rates = [float(group["lr"]) for group in self.param_groups]
        clipping, self._known_norm = self._clipping()
        self._session.begin_step(rates, skip_missing=True, **clipping)
        self._is_stepping = True
        if not self._updates_under_forward:
            self.finish_step()
        return loss

    def _clipping(self):
        """How the session clips; and the norm, where it is known before the step."""
        return {"max_grad_norm": self.max_grad_norm}, None

    def _gradients(self):
        """The sums of this step, fp32, of the parameters that have one, in their order."""
        numbers = dict.fromkeys(self._tensors.values())  # tied parameters have one
        arrays = (self._session.gradient(number) for number in numbers)
        return [torch.frombuffer(array, dtype=torch.float32) for array in arrays if array is not None]

    def finish_step(self):
        """Waits until the step that step() has begun is complete. Only of use with updates="forward", before
        parameters are read in another way than by their modules' forward or the model's state_dict()."""
        if not self._is_stepping:
            return
        self._is_stepping = False
        try:
            norm = self._session.end_step().gradient_norm
        except lib.ParameterChangedError as error:  # the gradients are kept
            raise lib.ParameterChangedError(f"{error}; here: optimizer.adopt([parameter])") from None
        except lib.TerraceError:
            self._has_gradients = False
            raise
        self._has_gradients = False
        self._grad_norm = norm if self._known_norm is None else self._known_norm

    def wait_for(self, parameters):
        """Waits until these parameters are updated."""
        if not self._is_stepping:
            return
        try:
            for parameter in parameters:
                if id(parameter) in self._tensors:
                    self._session.wait_parameter(self._tensors[id(parameter)])
        except lib.TerraceError:
            self.finish_step()  # raises it too, and ends the step
            raise

    @property
    def takes_gradients(self):
        """Whether .grad is taken away in the backward."""
        return self._takes_gradients

    @property
    def grad_norm(self):
        """Norm over all gradients of the last step, before clipping; None before the first."""
        if not self._is_stepping:
            return self._grad_norm
        return self._session.wait_norm() if self._known_norm is None else self._known_norm

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none=set_to_none)
        self._forget_gradients()

    def _forget_gradients(self):
        if self._has_gradients and not self._is_stepping:
            self._session.discard_gradients()
            self._has_gradients = False

    def adopt(self, parameters):
        """Takes what was written into parameters of 16 bits for their fp32 masters, as a step asks for that finds
        them changed. fp32 parameters are their own masters and need nothing."""
        self.finish_step()
        self._ready_session()
        for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            if id(parameter) not in self._tensors:
                raise lib.ArgumentError("a parameter is adopted that this optimizer does not train")
            self._session.adopt_parameter(self._tensors[id(parameter)])

    def ledger(self):
        """What of host memory and drives is used for what, and the budgets."""
        return self._ready_session().ledger()

    def metrics(self):
        """Times and bytes moved, of the steps so far."""
        self.finish_step()
        return self._ready_session().metrics()

    def __getstate__(self):
        raise lib.UnsupportedError("an optimizer of terrace.torch has memory and files of its own, and cannot be copied "
                                   "or pickled: make another, and load this one's state_dict()")
