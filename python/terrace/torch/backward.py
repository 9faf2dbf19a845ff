"""Updates that run under the backward."""

import torch

from terrace import library as lib


class BackwardUpdates:
    """Starts a tensor's update when the last gradient of a step has come for it.

    Gradients come to a tensor once a backward, or more often: where it is tied, where a graph is in parts. How often
    is counted in the steps so far; the first step has no update under its backward. What comes less often is updated
    by step(); what comes more often is found, and refused, since the update has begun without it."""

    def __init__(self, session_of, rates_of):
        self._session_of = session_of   # makes the session, and checks that all is as it was
        self._rates_of = rates_of
        self._is_last = lambda: True
        self._expected = {}  # number of a tensor: gradients that it had, at most, in the last backwards of a step
        self._counts = {}    # the same, in this step
        self._rates = None   # of the step that has begun
        self._failure = None

    def set_is_last(self, last):
        self._is_last = last if callable(last) else lambda: last

    @property
    def has_begun(self):
        return self._rates is not None

    def check(self):
        """Refuses to go on after a step that had a part of a gradient only."""
        if self._failure is not None:
            raise lib.FailedSessionError(f"an earlier step was wrong ({self._failure}): load a saved state by "
                                         "optimizer.load(), or make another optimizer")

    def add(self, number, buffer, owner, parameter):
        """Adds a gradient, as Session.add_gradient() does, and starts the update where it was the last."""
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
        # Whoever saved the parameter for a backward that is yet to come is told by torch.
        torch.autograd.graph.increment_version(parameter)

    def end(self):
        """step() was called: returns whether the session's step has begun already."""
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
        """Gradients were removed from .grad before step(): raises where they have been used."""
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
                pass  # of a step that counts for nothing
        self.forget()

    def forget(self):
        """Gradients of this step are given up, or its updates are done."""
        self._counts, self._rates = {}, None

    def restart(self):
        """State is loaded: what was wrong before is gone."""
        self.abandon()
        self._failure = None
