"""AdamW, Lion and SGD as torch.optim.Optimizer, updated by Terrace: see TieredOptimizer."""

import math
import os
import tempfile
import warnings
import weakref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from terrace import library as lib
from terrace.session import Session, buffer_of, directories_of
from terrace.torch.waiting import ParameterWaits

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


# Of each parameter, the hook that takes its gradients, and the optimizer that it takes them for.
_takers = WeakTensorKeyDictionary()


def _give_gradients_to(parameters, optimizer):
    takes_from_another = False
    known = weakref.ref(optimizer)

    def take(parameter):
        if known() is not None:
            known()._take(parameter)

    for parameter in parameters:
        if parameter in _takers:
            hook, other = _takers[parameter]
            takes_from_another = takes_from_another or other() not in (None, optimizer)
            hook.remove()
        _takers[parameter] = (parameter.register_post_accumulate_grad_hook(take), known)
    if takes_from_another:
        warnings.warn("another optimizer of terrace.torch has these parameters too: gradients go to the one that was "
                      "made last, and the other trains nothing of them", stacklevel=4)


def _buffer(tensor, name_of):
    """`name_of` is called for the text of an error."""
    if tensor.dtype not in _DTYPES:
        raise lib.DTypeError(f"{name_of()} is {tensor.dtype}; parameters and gradients are float32, bfloat16 or "
                             "float16")
    return buffer_of(tensor.data_ptr(), tensor.numel(), _DTYPES[tensor.dtype], tensor.device.type,
                     tensor.device.index or 0)


class TieredOptimizer(torch.optim.Optimizer):
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
        self._takes_gradients = not _has_several_ranks() if take_gradients is None else take_gradients
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
            _give_gradients_to([p for p in self.param_groups[-1]["params"] if p.requires_grad], self)

    def _check_model(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._names:
                    raise lib.ArgumentError(f"{self._name_of(parameter)} is in no module of model=, whose forward would "
                                            "wait for it: give the model that has it, or updates='step'")

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
        session.add_gradient(number, _buffer(dense, lambda: f"the gradient of {self._name_of(parameter)}"))
        self._has_gradients = True

    def _name_of(self, parameter):
        for g, group in enumerate(self.param_groups):
            for i, other in enumerate(group["params"]):
                if other is parameter:
                    names = group.get("param_names")
                    return self._names.get(id(parameter)) or (names[i] if names else f"group_{g}.parameter_{i}")
        return "a parameter"

    def _settings_of(self, group):
        values = {name: float(value) for name, value in self.hyperparameters_of(group).items()}
        return values, float(group["weight_decay"])

    def _ready_session(self):
        """The session, made of the groups as they are at the first call."""
        if self._session is None:
            if self._must_be_alone and self._takes_gradients and _has_several_ranks():
                raise lib.OrderError("the optimizer was made before torch.distributed had several ranks, so it would "
                                     "take gradients before they are reduced: make it after init_process_group(), or "
                                     "give take_gradients=False")
            session = Session(**self._session_options)
            try:
                self._register(session)
                session.prepare()
            except BaseException as error:
                session.close()
                if isinstance(error, lib.DoesNotFitError) and self._session_options["state"] == "host":
                    error.args = (f"{error}; or keep the state on a drive: state='nvme', nvme=DIRECTORY",)
                self._tensors, self._addresses, self._settings = {}, {}, []
                raise
            self._session = session
        return self._session

    def _register(self, session):
        for group in self.param_groups:
            values, weight_decay = self._settings_of(group)
            number = session.add_group(self.rule, values, weight_decay)
            self._settings.append((values, weight_decay))
            for parameter in group["params"]:
                if not parameter.requires_grad:
                    continue
                name = self._name_of(parameter)
                if parameter.numel() == 0:
                    continue
                if not parameter.data.is_contiguous():
                    raise lib.UnsupportedError(f"{name} is not contiguous: use its .contiguous() as the parameter")
                self._tensors[id(parameter)] = session.add_tensor(
                    number, name, _buffer(parameter.data, lambda name=name: name), tuple(parameter.shape))
                self._addresses[id(parameter)] = parameter.data_ptr()

    def _check_unchanged(self):
        for group, settings in zip(self.param_groups, self._settings):
            if self._settings_of(group) != settings:
                raise lib.OrderError(f"a group's settings were {settings} at the first step and are "
                                     f"{self._settings_of(group)}: only lr may change (a scheduler that changes "
                                     "betas takes cycle_momentum=False)")
            for parameter in group["params"]:
                if self._addresses.get(id(parameter), parameter.data_ptr()) != parameter.data_ptr():
                    raise lib.OrderError(f"{self._name_of(parameter)} has moved in memory since the first step: make "
                                         "the optimizer after what moves it, such as model.to()")

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

    # ---- state -------------------------------------------------------------------------------------------

    def state_dict(self):
        """As torch.optim's of the same rule has it, with "master" for parameters in 16 bits. The tensors are
        mappings of files that are gone when the tensors are: memory for them is what the system can spare."""
        self._fill_state()
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict):
        """Takes a state_dict() of this class, or of torch.optim's of the same rule."""
        self.finish_step()
        self._check_loadable(state_dict)
        saved = state_dict["state"]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        # torch would round the state to the parameters' type, and have all of it in memory.
        super().load_state_dict({**state_dict, "state": {}})
        if not saved and self._session is None:
            return
        self._ready_session()
        self._forget_gradients()
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters):
            self._write_state(parameter, saved.get(number, {}))

    def _check_loadable(self, state_dict):
        """Refuses a state before anything of it is taken."""
        self._check_unchanged()
        groups = state_dict["param_groups"]
        for number, (group, saved) in enumerate(zip(self.param_groups, groups)):
            self._check_settings(saved)
            if self._session is not None and self._settings_of({**group, **saved}) != self._settings[number]:
                raise lib.OrderError("the state has other settings than the first step had: load it before the first "
                                     "backward")
            for parameter, place in zip(group["params"], saved["params"]):
                fields = state_dict["state"].get(place, {})
                lacking = [name for name in self.fields if fields and fields.get(name) is None]
                if lacking:
                    raise lib.StateMismatchError(f"the state of {self._name_of(parameter)} has no {lacking[0]}: it is "
                                                 "of another optimizer")
                for name in self.fields + ("master",):
                    if name in fields and fields[name].shape != parameter.shape:
                        raise lib.StateMismatchError(f"{name} of {self._name_of(parameter)} is of shape "
                                                     f"{tuple(fields[name].shape)}, not {tuple(parameter.shape)}")

    def _check_settings(self, saved):
        lacking = [key for key in self._own_settings if key not in saved]
        if lacking:
            raise lib.StateMismatchError(f"the state has no {lacking[0]}: it is of another optimizer")
        for key in ("amsgrad", "maximize", "nesterov", "dampening"):
            if saved.get(key):
                raise lib.UnsupportedError(f"the state is of an optimizer with {key}={saved[key]}, which this one has "
                                           "not")
        if saved.get("weight_decay") and saved.get("decoupled_weight_decay") is False:
            raise lib.UnsupportedError("the state is of torch.optim.Adam, whose weight_decay is a part of the gradient")

    def save(self, directory):
        """Writes masters and state into a directory, atomically: what was saved there before is whole until the new
        state is."""
        self.finish_step()
        self._check_unchanged()
        self._ready_session().save(directory)

    def load(self, directory):
        """Takes what save() wrote, and writes the parameters from it."""
        self.finish_step()
        self._check_unchanged()
        self._ready_session().load(directory)
        self._has_gradients = False

    def ledger(self):
        """What of host memory and drives is used for what, and the budgets."""
        return self._ready_session().ledger()

    def metrics(self):
        """Times and bytes moved, of the steps so far."""
        self.finish_step()
        return self._ready_session().metrics()

    def _fill_state(self):
        self.finish_step()
        if self._session is None:
            return
        self._check_unchanged()
        for group in self.param_groups:
            for parameter in group["params"]:
                number = self._tensors.get(id(parameter))
                updates = 0 if number is None else self._session.updates(number)
                if updates > 0:
                    self.state[parameter] = self._read_state(parameter, number, updates)

    def _read_state(self, parameter, number, updates):
        fields = {"step": torch.tensor(float(updates))}
        names = self.fields + (() if parameter.dtype == torch.float32 else ("master",))
        for name in names:
            out = _mapped(parameter.shape, self._first_drive())
            self._session.read_state(number, name, _buffer(out, lambda name=name: name))
            fields[name] = out
        return fields

    def _write_state(self, parameter, fields):
        number = self._tensors.get(id(parameter))
        if number is None:
            if fields and parameter.numel():
                raise lib.StateMismatchError(f"the state has {self._name_of(parameter)}, which is frozen here")
            return
        kept = [name for name in self.fields if fields.get(name) is not None]
        for name in self.fields + ("master",) * ("master" in fields):
            values = fields[name].detach().to("cpu", torch.float32).contiguous() if name in fields \
                else torch.zeros(parameter.shape)
            self._session.write_state(number, name, _buffer(values, lambda name=name: name))
        if parameter.dtype != torch.float32 and "master" not in fields:
            self._session.adopt_parameter(number)
        # torch.optim.SGD counts no steps.
        self._session.set_updates(number, int(fields.get("step", 1 if kept else 0)))

    def _first_drive(self):
        return next(iter(directories_of(self._session_options["nvme"])), None)

    def __getstate__(self):
        raise lib.UnsupportedError("an optimizer of terrace.torch has memory and files of its own, and cannot be copied "
                                   "or pickled: make another, and load this one's state_dict()")


def _has_several_ranks():
    return (torch.distributed.is_available() and torch.distributed.is_initialized()
            and torch.distributed.get_world_size() > 1)


def _mapped(shape, directory):
    """An fp32 tensor in a file without a name, so that the system may write its pages out."""
    with tempfile.TemporaryFile(dir=directory) as file:
        count = shape.numel()
        try:
            os.posix_fallocate(file.fileno(), 0, 4 * max(1, count))
        except OSError as error:
            raise lib.FullDiskError(f"{directory or tempfile.gettempdir()} has no room for {4 * count} bytes of a "
                                    f"state_dict(): {error.strerror}; set TMPDIR to a drive that has, or use "
                                    "save()") from error
        return torch.from_file(f"/proc/self/fd/{file.fileno()}", shared=True, size=count,
                               dtype=torch.float32).view(shape)


class AdamW(TieredOptimizer):
    """torch.optim.AdamW's arguments; TieredOptimizer has the rest.

    arithmetic="torch" has the operations of torch.optim.AdamW(foreach=False, fused=False), and clips as
    torch.nn.utils.clip_grad_norm_ does: the bits of fp32 parameters are torch's, where torch's square roots are
    correctly rounded, and within 2 units in the last place of a step elsewhere. "terrace" has those of the program
    terrace, whose norm is summed in fp64 and whose bits are the same on every processor."""

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
        if not torch.isfinite(norm) or coefficient == 0:  # beyond what fp32 can say
            return super()._clipping()
        return {"gradient_scale": coefficient}, float(norm)

    @staticmethod
    def hyperparameters_of(group):
        return {"adam_beta1": group["betas"][0], "adam_beta2": group["betas"][1], "adam_epsilon": group["eps"]}


class Lion(TieredOptimizer):
    """Lion (Chen et al., 2023). TieredOptimizer has the rest."""

    rule = "lion"
    fields = ("exp_avg",)

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, **tiered):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, **tiered)

    @staticmethod
    def hyperparameters_of(group):
        return {"lion_beta1": group["betas"][0], "lion_beta2": group["betas"][1]}


class SGD(TieredOptimizer):
    """torch.optim.SGD with momentum, without dampening and Nesterov's form. TieredOptimizer has the rest."""

    rule = "sgd"
    fields = ("momentum_buffer",)

    def __init__(self, params, lr=1e-3, momentum=0.9, weight_decay=0.0, **tiered):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, **tiered)

    @staticmethod
    def hyperparameters_of(group):
        return {"sgd_momentum": group["momentum"]}
