"""TieredOptimizer, the class that AdamW, Lion and SGD of terrace.torch share."""

import math
import os

import torch
from torch.autograd.graph import increment_version

from terrace import library as lib
from terrace.session import directories_of
from terrace.torch.backward import BackwardUpdates
from terrace.torch.gradients import (give_gradients_to, has_several_ranks, leave_gradients_of, note_owner,
                                     watch_gradients_of)
from terrace.torch.groups import SessionGroups
from terrace.torch.movement import movement_of_parameters
from terrace.torch.names import names_of
from terrace.torch.offloaded_optimizer import offloaded_class
from terrace.torch.shards import coefficient_of, square_sums_of_all
from terrace.torch.state import SavedState
from terrace.torch.step_gradients import StepGradients
from terrace.torch.waiting import ParameterWaits


def cores_are_busy():
    """Returns whether torch's threads keep every core busy that this process may use, while a forward runs."""
    return torch.get_num_threads() >= len(os.sched_getaffinity(0))


class TieredOptimizer(SessionGroups, StepGradients, SavedState, torch.optim.Optimizer):
    """The base class of AdamW, Lion and SGD. Beside torch's own arguments they take:

    max_grad_norm   gradients whose norm over all parameters is larger are scaled down to it, exactly; 0: never.
                    Replaces torch.nn.utils.clip_grad_norm_, and is faster.
    state           where the state lives: "host", "nvme", or "auto" (host memory first)
    host_memory     the host memory that the optimizer may use, as "8GiB"; None: what is free
    nvme            a directory on a drive, or several, for state that lives there
    updates         "step": step() returns when all parameters are updated. "forward": step() returns at once,
                    and the next forward of `model` waits for the parameters that it reads. Code that reads one
                    before that must call finish_step() first. If the state is in host memory and torch's threads
                    use every core, updates would slow the forward down, and step() waits for them. "backward":
                    the last backward before step() updates each parameter when its gradient is complete, and
                    step() waits for the rest. That works without clipping only; see set_is_last_backward()
    model           the torch.nn.Module that has these parameters, or the result of torch.compile() if that is what
                    is called. It also gives the parameters their names
    take_gradients  False: gradients stay in .grad, as torch has them, and step() reads them there. True: each gradient
                    is added up in fp32 as soon as backward has it, and its memory goes away with the update. Code that
                    uses .grad before step(), to clip for instance, gets an error. None: True for updates="backward"
    threads         threads of an update; 0: as many as the process may use

    A 16-bit parameter has an fp32 master in the state. Parameters are dense, on the CPU or on CUDA GPUs. The work on
    a GPU's parameters is on the stream that is current at the first call that needs the session. A parameter that is
    frozen at the first step stays frozen. `grad_norm` is the norm of the last step, before clipping."""

    rule = ""
    fields = ()           # names of the state that the rule keeps, as torch has them

    def __init__(self, params, defaults, *, max_grad_norm=0.0, state="host", host_memory=None, nvme=(),
                 updates="step", model=None, take_gradients=None, threads=0):
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        movement = movement_of_parameters(params)
        if movement is not None:
            self.__class__ = offloaded_class(type(self))
            return self._init_offloaded(movement, params, defaults, max_grad_norm, {
                "state": state, "host_memory": host_memory, "nvme": nvme, "updates": updates, "threads": threads,
                "take_gradients": take_gradients})
        if updates not in ("step", "forward", "backward"):
            raise lib.ArgumentError(f"updates={updates!r}: give 'step', 'forward' or 'backward'")
        if updates == "forward" and model is None:
            raise lib.ArgumentError("updates='forward' needs model=, whose forward waits for its parameters")
        self.max_grad_norm = float(max_grad_norm or 0.0)
        if not 0 <= self.max_grad_norm < math.inf:
            raise lib.ArgumentError(f"max_grad_norm={max_grad_norm}: give more than 0, or 0 for no clipping")
        self._must_be_alone = take_gradients is None  # taking that nobody asked for is refused with several ranks
        alone_under_backward = updates == "backward" and not has_several_ranks()
        self._takes_gradients = alone_under_backward if take_gradients is None else bool(take_gradients)
        self._updates = updates
        self._updates_under_forward = updates == "forward"
        self._under_backward = self._backward_updates() if updates == "backward" else None
        self._names = {} if model is None else names_of(model)
        self._session_options = {"state": state, "host_memory": host_memory, "nvme": nvme, "threads": threads}
        self._make_session().close()  # raises at once if options are wrong
        for directory in directories_of(nvme):
            if not os.path.isdir(directory):
                raise lib.ArgumentError(f"nvme: {os.fsdecode(directory)} is not a directory")
        self._session = None
        self._tensors = {}       # by id of a parameter, its number in the session
        self._addresses = {}     # by id of a parameter, its address when it was added
        self._settings = []      # the settings of each group, as the session has them
        self._has_gradients = False
        self._is_stepping = False
        self._unwaited = {}      # by id, the parameters that the step under way may not have updated yet
        self._frozen_state = {}  # the loaded state of parameters that are frozen here
        self._empty_updates = {}  # by id of a parameter whose elements other ranks have, its number of updates
        self._empty_gradients = set()
        self._grad_norm = None
        self._known_norm = None
        self._own_settings = tuple(defaults)
        self._waits = None
        self._init_gradients()
        super().__init__(params, defaults)
        if self._updates_under_forward:
            self._check_model()
            self._waits = ParameterWaits(self, model)

    # ---- parameters and gradients ------------------------------------------------------------------------

    def add_param_group(self, param_group):
        if getattr(self, "_session", None) is not None:
            raise lib.OrderError("a group cannot be added after the first backward: make a new optimizer, and load "
                                 "the state of this one with the groups that it has")
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except lib.TerraceError:
            self.param_groups.pop()
            raise
        note_owner(self.param_groups[-1]["params"], self)
        training = [p for p in self.param_groups[-1]["params"] if p.requires_grad]
        if self._takes_gradients:
            give_gradients_to(training, self)
            return
        leave_gradients_of(training)
        if self._updates_under_forward:
            watch_gradients_of(training, self)

    def _backward_updates(self):
        if self.max_grad_norm:
            raise lib.ArgumentError(f"updates='backward' begins before the norm is known, and max_grad_norm="
                                    f"{self.max_grad_norm} needs it: give updates='forward', or max_grad_norm=0")
        if not self._takes_gradients:
            raise lib.ArgumentError("updates='backward' updates with gradients as the backward has them, and with "
                                    "take_gradients=False, or with several ranks, something else works on them first: "
                                    "give updates='forward'")

        def session_of():
            return self._session

        def rates_of():
            self._check_unchanged()
            return self._rates()

        return BackwardUpdates(session_of, rates_of)

    def set_is_last_backward(self, last):
        """Says, with updates="backward", whether the backwards from now on are the last ones before step(), so that a
        gradient is complete when it comes. `last` may also be a function that returns this when it is called. If
        nobody says it, gradients are counted: each step has as many backwards as the first one."""
        if self._under_backward is not None:
            self._under_backward.set_is_last(last)

    def _rates(self):
        return [float(group["lr"]) for group in self.param_groups]

    # ---- a step ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure=None):
        """Updates the parameters that have gradients. Raises the errors of terrace.library. NotFiniteError says that a
        gradient is infinite or NaN; then nothing was updated."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.finish_step()
        if self._waits is not None:
            self._waits.reset()
        self._collect_gradients()
        if self._has_shared_parameters():
            self._step_with_ranks()
        elif self._has_gradients:
            self._begin_step()
            if not self._updates_under_forward or self._would_slow_forwards():
                self.finish_step()
        return loss

    def _would_slow_forwards(self):
        """Returns whether updates have nothing to wait for, and would take cores from a forward that uses all of
        them."""
        waits = directories_of(self._session_options["nvme"]) or any(p.device.type != "cpu"
                                                                     for p in self._unwaited.values())
        return not waits and cores_are_busy()

    def _begin_step(self):
        if self._under_backward is not None:
            self._under_backward.check()
            if self._end_backward():
                return
        self._check_unchanged()
        clipping, self._known_norm = self._clipping()
        self._session.begin_step(self._rates(), skip_missing=True, **clipping)
        self._is_stepping = True
        self._unwaited = {id(p): p for group in self.param_groups for p in group["params"] if id(p) in self._tensors}
        self._taken.end()
        increment_version(list(self._unwaited.values()))

    def _end_backward(self):
        """Returns whether the step has begun under the backward."""
        self._is_stepping = self._under_backward.has_begun
        self._known_norm = None
        try:
            had_begun = self._under_backward.end()
            if had_begun:
                self._taken.end()
            return had_begun
        except lib.OrderError:
            self.finish_step()
            raise

    def _step_with_ranks(self):
        """Does a step in which each rank has a part. All ranks take part in the norm, also a rank without elements."""
        if self._has_gradients:
            self._check_unchanged()
        parameters, sums, seen = [], [], set()
        for parameter in (p for group in self.param_groups for p in group["params"] if p.requires_grad):
            number = self._tensors.get(id(parameter))
            parameters.append(parameter)
            sums.append(0.0 if number is None or number in seen else self._session.square_sum(number))
            seen.add(number)
        sums = square_sums_of_all(parameters, sums)
        norm = math.sqrt(sum(sums))
        if not math.isfinite(norm):
            self._forget_gradients()
            which = next(p for p, value in zip(parameters, sums) if not math.isfinite(value))
            raise lib.NotFiniteError(f"the gradient of {self._name_of(which)} is not finite: nothing was updated, on "
                                     "no rank; call zero_grad() and go on with the next batch, or lower the learning "
                                     "rate or the loss scale")
        try:
            scale = coefficient_of(norm, self.max_grad_norm)
        except lib.NotFiniteError:
            self._forget_gradients()
            raise
        if self._has_gradients:
            self._session.begin_step(self._rates(), skip_missing=True, gradient_scale=scale,
                                     known_norm=norm * scale)
            self._is_stepping, self._known_norm = True, norm
            self._taken.end()
            self.finish_step()
        for parameter in self._empty_gradients:
            self._empty_updates[parameter] = self._empty_updates.get(parameter, 0) + 1
        self._empty_gradients.clear()
        self._grad_norm = norm
        self._mark_state()

    def _clipping(self):
        """Returns how the session clips, and the norm if it is known before the step."""
        return {"max_grad_norm": self.max_grad_norm}, None

    def _gradients(self):
        """Returns the fp32 gradient sums of this step, of the parameters that have one, in the parameters' order."""
        numbers = dict.fromkeys(self._tensors.values())  # tied parameters share one
        arrays = (self._session.gradient(number) for number in numbers)
        return [torch.frombuffer(array, dtype=torch.float32) for array in arrays if array is not None]

    def finish_step(self):
        """Waits until the step that step() has begun is complete. Only needed with updates="forward", before
        parameters are read in another way than by their modules' forward or the model's state_dict()."""
        if not self._is_stepping:
            return
        self._is_stepping = False
        if self._updates_under_forward:
            increment_version(list(self._unwaited.values()))
        self._unwaited = {}
        try:
            norm = self._session.end_step().gradient_norm
        except lib.ParameterChangedError:
            self._keep_gradients()
            raise
        except lib.TerraceError:
            self._has_gradients = False
            raise
        finally:
            self._return_lent()
        self._has_gradients = False
        self._grad_norm = norm if self._known_norm is None else self._known_norm
        self._mark_state()

    def _mark_state(self):
        """Leaves an entry in self.state: without one, torch.distributed.checkpoint would do a step of its own."""
        self.state.setdefault(self.param_groups[0]["params"][0], {})

    def wait_for(self, parameters):
        """Waits until these parameters are updated."""
        if not self._unwaited:
            return
        try:
            for parameter in parameters:
                if id(parameter) in self._unwaited:
                    self._session.wait_parameter(self._tensors[id(parameter)])
                    # A forward that has saved it since the step began has saved old values; torch now reports that.
                    increment_version(self._unwaited.pop(id(parameter)))
        except lib.TerraceError:
            self.finish_step()  # raises the error too, and ends the step
            raise

    @property
    def takes_gradients(self):
        """Whether gradients are taken in the backward, so that nobody finds them in .grad."""
        return self._takes_gradients

    @property
    def grad_norm(self):
        """Norm over all gradients of the last step, before clipping; None before the first."""
        if not self._is_stepping:
            return self._grad_norm
        return self._session.wait_norm() if self._known_norm is None else self._known_norm

    def adopt(self, parameters):
        """Sets the fp32 masters of 16-bit parameters to the values that were written into the parameters. A step that
        finds parameters changed asks for this. fp32 parameters are their own masters and need nothing."""
        self.finish_step()
        self._ready_session()
        for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            if id(parameter) not in self._tensors:
                raise lib.ArgumentError("a parameter is adopted that this optimizer does not train")
            self._session.adopt_parameter(self._tensors[id(parameter)])

    def pause(self, directory=None):
        """Gives back all memory of state and gradients, for another user of the machine. The content goes to files
        without a name in `directory`, or else in the `nvme` directories. Until resume() everything else is refused."""
        self.finish_step()
        self._ready_session().pause(directory)

    def resume(self):
        """Takes the memory back, with every bit as it was."""
        self._ready_session().resume()

    def ledger(self):
        """Returns what host memory and drives are used for, and the budgets."""
        return {} if self._has_nothing_here() else self._ready_session().ledger()

    def metrics(self):
        """Returns the times of the steps so far, and the bytes that they have moved."""
        self.finish_step()
        return {} if self._has_nothing_here() else self._ready_session().metrics()

    def __getstate__(self):
        raise lib.UnsupportedError("an optimizer of terrace.torch has memory and files of its own, and cannot be "
                                   "copied or pickled: make another, and load this one's state_dict()")
