"""Updates that overlap with the backward."""

import torch

from terrace import library as lib


class BackwardUpdates:
    """Starts a tensor's update when the last gradient of a step has come for it.

    A tensor gets a gradient once in a backward, or more often: where it is tied, or where a graph is in parts. How
    often is counted in the steps so far, so the first step has no update under its backward. A tensor that gets fewer
    gradients is updated by step(). One gradient more is detected and refused, since the update began without it."""

    def __init__(self, session_of, rates_of):
        self._session_of = session_of   # returns the optimizer's session
        self._rates_of = rates_of       # returns the learning rates, and checks that nothing else has changed
        self._is_last = lambda: True
        self._expected = {}  # by number of a tensor, the most gradients that the last backwards of a step gave it
        self._counts = {}    # the same, in this step
        self._rates = None   # learning rates of the step that has begun
        self._failure = None

    def set_is_last(self, last):
        self._is_last = last if callable(last) else lambda: last

    @property
    def has_begun(self):
        return self._rates is not None

    def check(self):
        """Refuses to go on after a step that went wrong, for instance with only a part of a gradient."""
        if self._failure is not None:
            raise lib.FailedSessionError(f"an earlier step was wrong ({self._failure}): load a saved state by "
                                         "optimizer.load(), or make another optimizer")

    def add(self, number, buffer, owner, parameter):
        """Adds a gradient, as Session.add_gradient() does, and starts the update if it was the last one."""
        session = self._session_of()
        try:
            session.add_gradient(number, buffer, owner)
        except lib.TerraceError as error:
            if self.has_begun:
                self._failure = str(error)
                self.abandon()
            raise
        if not self._is_last():
            return
        self._counts[number] = self._counts.get(number, 0) + 1
        if self._counts[number] != self._expected.get(number):
            return
        if not self.has_begun:
            rates = self._rates_of()
            session.begin_step(rates, gradients_arrive=True)
            self._rates = rates
        session.complete_gradient(number)
        # A backward that has yet to come and has saved the parameter gets an error from torch.
        torch.autograd.graph.increment_version(parameter)

    def end(self):
        """Is called by step(). Returns whether the session's step has begun already."""
        had_begun, rates = self.has_begun, self._rates
        for number, count in self._counts.items():
            self._expected[number] = max(count, self._expected.get(number, 0))
        self.forget()
        if had_begun and rates != self._rates_of():
            self._failure = "lr was changed between the last backward and step()"
            raise lib.OrderError(f"{self._failure}, and updates have begun with the old one: call the scheduler after "
                                 "step(), or give updates='forward'")
        return had_begun

    def refuse_giving_up(self):
        """Is called when gradients were removed from .grad before step(). Raises if they have been used."""
        if self.has_begun:
            self._failure = "gradients were removed after updates with them had begun under the backward"
            self.abandon()
            self.check()

    def abandon(self):
        """Ends a step that step() will not end, with the gradients that it has."""
        if self.has_begun:
            try:
                self._session_of().end_step()
            except lib.TerraceError:
                pass  # the step counts for nothing
        self.forget()

    def forget(self):
        """Forgets this step, whose gradients are given up or whose updates are done."""
        self._counts, self._rates = {}, None

    def restart(self):
        """Forgets this step and earlier failures, since a state is loaded."""
        self.abandon()
        self._failure = None
