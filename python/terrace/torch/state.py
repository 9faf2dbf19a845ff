"""The state of an optimizer: state_dict(), and files."""

import os
import tempfile

import torch

from terrace import library as lib
from terrace.session import directories_of
from terrace.torch.gradients import tensor_buffer
from terrace.torch.shards import (check_saved_by_as_many, folder_of_rank, is_shared, largest_of_all, local_of,
                                  shared_like)


class SavedState:
    """Part of TieredOptimizer: saves and loads the state that it keeps beside the parameters."""

    def state_dict(self):
        """Returns the same as torch.optim's class of the same rule, and "master" for 16-bit parameters. The tensors are
        mappings of files that go away with the tensors. They only take the memory that the system can spare."""
        self._fill_state()
        try:
            return super().state_dict()
        finally:
            marked = bool(self.state)
            self.state.clear()
            if marked:
                self._mark_state()

    def load_state_dict(self, state_dict):
        """Takes a state_dict() of this class, or of torch.optim's class of the same rule."""
        self.finish_step()
        self._check_loadable(state_dict)
        saved = state_dict["state"]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        # Torch would round the state to the parameters' type, and hold all of it in memory.
        super().load_state_dict({**state_dict, "state": {}})
        if self._under_backward is not None:
            self._under_backward.restart()
        if not saved and self._session is None:
            return
        if not self._has_nothing_here():
            self._ready_session()
        self._forget_gradients()
        self._drop_gradients()
        self._frozen_state.clear()
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters):
            self._write_state(parameter, saved.get(number, {}))
        self._mark_state()

    def _check_loadable(self, state_dict):
        """Refuses a wrong state before any part of it is taken."""
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
                    if name in fields and is_shared(fields[name]) != is_shared(parameter):
                        raise lib.StateMismatchError(f"{name} of {self._name_of(parameter)} is not sharded as the "
                                                     "parameter is: load it by torch.distributed.checkpoint."
                                                     "state_dict.set_optimizer_state_dict()")
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
        """Writes masters and state into a directory, atomically: a state that was saved there before stays whole until
        the new one is whole."""
        self.finish_step()
        self._check_unchanged()
        if self._has_shared_parameters():
            os.makedirs(directory, exist_ok=True)
            directory = folder_of_rank(directory)
        if not self._has_nothing_here():
            self._ready_session().save(directory)

    def load(self, directory):
        """Takes what save() wrote, and writes the parameters from it."""
        self.finish_step()
        self._check_unchanged()
        if self._under_backward is not None:
            self._under_backward.restart()
        if not self._has_shared_parameters():
            self._load_files(directory)
        else:
            self._load_part(directory)
        self._drop_gradients()
        self._mark_state()

    def _load_files(self, directory):
        try:
            self._ready_session().load(directory)
        except lib.StateMismatchError as error:
            frozen = [self._name_of(parameter) for group in self.param_groups for parameter in group["params"]
                      if id(parameter) not in self._tensors]
            if frozen:
                error.args = (f"{error}. {frozen[0]} and {len(frozen) - 1} more are frozen here: freeze what trained "
                              "when the state was saved by requires_grad_(False) after load(), and not before",)
            raise

    def _load_part(self, directory):
        check_saved_by_as_many(directory)
        steps = 0
        if not self._has_nothing_here():
            self._ready_session().load(folder_of_rank(directory))
            steps = self._session.step_count()
        steps = largest_of_all(steps)
        self._empty_updates = {id(parameter): steps for group in self.param_groups for parameter in group["params"]
                               if steps and parameter.requires_grad and local_of(parameter).numel() == 0}

    def _fill_state(self):
        self.finish_step()
        self.state.clear()
        self._check_unchanged()
        for group in self.param_groups:
            for parameter in group["params"]:
                number = self._tensors.get(id(parameter))
                updates = self._empty_updates.get(id(parameter), 0) if number is None else self._session.updates(number)
                if updates > 0:
                    self.state[parameter] = self._read_state(parameter, number, updates)
                elif parameter in self._frozen_state:
                    self.state[parameter] = self._frozen_state[parameter]

    def _read_state(self, parameter, number, updates):
        fields = {"step": torch.tensor(float(updates))}
        names = self.fields + (() if parameter.dtype == torch.float32 else ("master",))
        for name in names:
            out = _mapped(local_of(parameter).shape, self._first_drive())
            if number is not None:
                self._session.read_state(number, name, tensor_buffer(out, lambda name=name: name))
            fields[name] = shared_like(parameter, out)
        return fields

    def _write_state(self, parameter, fields):
        number = self._tensors.get(id(parameter))
        if number is None:
            if is_shared(parameter) and parameter.requires_grad:
                self._empty_updates[id(parameter)] = int(fields.get("step", 0))
                return
            if fields and parameter.numel():
                self._frozen_state[parameter] = fields  # kept until it is trained again
            return
        kept = [name for name in self.fields if fields.get(name) is not None]
        for name in self.fields + ("master",) * ("master" in fields):
            values = local_of(fields[name]).to("cpu", torch.float32).contiguous() if name in fields \
                else torch.zeros(local_of(parameter).shape, device="cpu")
            self._session.write_state(number, name, tensor_buffer(values, lambda name=name: name))
        if parameter.dtype != torch.float32 and "master" not in fields:
            self._session.adopt_parameter(number)
        # torch.optim.SGD counts no steps.
        self._session.set_updates(number, int(fields.get("step", 1 if kept else 0)))

    def _first_drive(self):
        return next(iter(directories_of(self._session_options["nvme"])), None)


def _mapped(shape, directory):
    """Returns an fp32 tensor in a file without a name, so that the system may write its pages out."""
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
