"""The state of an optimizer: state_dict(), and files."""

import os
import tempfile

import torch

from terrace import library as lib
from terrace.session import directories_of
from terrace.torch.gradients import tensor_buffer


class SavedState:
    """Part of TieredOptimizer: what it keeps beside the parameters, for others to save and load."""

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
            self._session.read_state(number, name, tensor_buffer(out, lambda name=name: name))
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
            self._session.write_state(number, name, tensor_buffer(values, lambda name=name: name))
        if parameter.dtype != torch.float32 and "master" not in fields:
            self._session.adopt_parameter(number)
        # torch.optim.SGD counts no steps.
        self._session.set_updates(number, int(fields.get("step", 1 if kept else 0)))

    def _first_drive(self):
        return next(iter(directories_of(self._session_options["nvme"])), None)


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
