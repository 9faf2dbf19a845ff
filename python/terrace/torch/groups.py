"""Gives the groups of an optimizer to a session of the library."""

from terrace import library as lib
from terrace.session import Session
from terrace.torch.gradients import has_several_ranks, tensor_buffer
from terrace.torch.movement import movement_of_parameters
from terrace.torch.names import names_of_group
from terrace.torch.shards import check_placements, is_shared, local_of
from terrace.torch.wording import reworded


class SessionGroups:
    """Part of TieredOptimizer: makes its session from its groups, and refuses groups that have changed since."""

    def _check_model(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._names:
                    raise lib.ArgumentError(f"{self._name_of(parameter)} is in no module of model=, whose forward "
                                            "would wait for it: give the model that has it, or updates='step'")

    def _name_of(self, parameter):
        for g, group in enumerate(self.param_groups):
            for i, other in enumerate(group["params"]):
                if other is parameter:
                    names = names_of_group(group.get("param_names") or ())
                    return self._names.get(id(parameter)) or (names[i] if names else f"group_{g}.parameter_{i}")
        return "a parameter"

    def _settings_of(self, group):
        values = {name: float(value) for name, value in self.hyperparameters_of(group).items()}
        return values, float(group["weight_decay"])

    def _make_session(self):
        return Session(**self._session_options, wording=reworded)

    def _check_group(self, group):
        """Refuses settings that no session takes, and parameters that cannot be updated in the way asked for."""
        session = self._make_session()
        try:
            session.add_group(self.rule, *self._settings_of(group))
        finally:
            session.close()
        for parameter in group["params"]:
            check_placements(parameter, self._name_of(parameter))
            if is_shared(parameter) and self._updates != "step":
                raise lib.UnsupportedError(f"{self._name_of(parameter)} is a DTensor, which others gather for a "
                                           f"forward and not by its module: updates={self._updates!r} is for whole parameters, "
                                           "give updates='step'")

    def _has_shared_parameters(self):
        return any(is_shared(parameter) for group in self.param_groups for parameter in group["params"])

    def _has_nothing_here(self):
        """Returns whether other ranks have all elements of all parameters."""
        return self._has_shared_parameters() and not any(
            local_of(parameter).numel() for group in self.param_groups for parameter in group["params"]
            if parameter.requires_grad)

    def _check_not_offloaded(self, parameters):
        """Refuses parameters whose memory offload() has taken since the optimizer was made."""
        for parameter in parameters:
            if movement_of_parameters([parameter]) is not None:
                raise lib.OrderError(f"{self._name_of(parameter)} is of a model that was offloaded after the optimizer "
                                     "was made: make the optimizer after terrace.torch.offload()")

    def _ready_session(self):
        """Returns the session, which the first call makes from the groups as they are then."""
        if self._session is None:
            self._check_not_offloaded(p for group in self.param_groups for p in group["params"])
            if self._must_be_alone and self._takes_gradients and has_several_ranks():
                raise lib.OrderError("the optimizer was made before torch.distributed had several ranks, so it would "
                                     "take gradients before they are reduced: make it after init_process_group(), or "
                                     "give take_gradients=False")
            session = self._make_session()
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
                local = local_of(parameter)
                check_placements(parameter, name)
                if local.numel() == 0:
                    continue
                if not local.is_contiguous():
                    raise lib.UnsupportedError(f"{name} is not contiguous: use its .contiguous() as the parameter")
                self._tensors[id(parameter)] = session.add_tensor(
                    number, name, tensor_buffer(local, lambda name=name: name), tuple(local.shape))
                self._addresses[id(parameter)] = local.data_ptr()

    def _check_unchanged(self):
        self._check_not_offloaded(p for group in self.param_groups for p in group["params"])
        for group, settings in zip(self.param_groups, self._settings):
            if self._settings_of(group) != settings:
                raise lib.OrderError(f"a group's settings were {settings} at the first step and are "
                                     f"{self._settings_of(group)}: only lr may change (a scheduler that changes "
                                     "betas takes cycle_momentum=False)")
            for parameter in group["params"]:
                known = self._addresses.get(id(parameter))
                if known is not None and known != local_of(parameter).data_ptr():
                    raise lib.OrderError(f"{self._name_of(parameter)} has moved in memory since the first step: make "
                                         "the optimizer after what moves it, such as model.to()")
