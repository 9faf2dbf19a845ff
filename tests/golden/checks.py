"""Proofs that a case can fail: what every option changes, and how far rounding moves results."""

import torch

from reference import (
    edited,
    gradients_of,
    logits_of,
    train,
    with_weights,
)

ROUNDINGS = 8  # trainings whose numbers are moved by one rounding


def distance(a, b):
    """The norm of the difference, relative to the norm of b; 1 where the shapes differ."""
    if a.shape != b.shape:
        return 1.0
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def changed_model(config, weights, change):
    model = with_weights(edited(config, change.keys, change.without), weights)
    if change.patch is not None:
        with torch.no_grad():
            change.patch(model)
    return model


def check_change(case, change, config, weights, results):
    """Fails unless the results with the option read otherwise are far from the case's."""
    model = changed_model(config, weights, change)
    if change.of == "logits":
        apart = distance(logits_of(model, results.batches), results.logits)
    else:
        gradients = gradients_of(model, results.batches)
        apart = max(distance(gradients[name], results.gradients[name]) for name in gradients)
    if apart < change.least:
        raise AssertionError(f"{case.name}: {change.name} changes {change.of} by {apart:.1e} only")
    return apart


def check_ignored(case, change, config, weights, results):
    logits = logits_of(changed_model(config, weights, change), results.batches)
    if not torch.equal(logits, results.logits):
        raise AssertionError(f"{case.name}: {change.name} is not ignored")


def moved(values, random):
    """Each value as it is, or one unit in the last place above or below, by chance."""
    steps = torch.randint(-1, 2, values.shape, generator=random)
    return values * (1.0 + steps * 2.0**-23)


def move_gradients(random):
    def move(model):
        for parameter in model.parameters():
            parameter.grad.copy_(moved(parameter.grad, random))

    return move


class Spread:
    """How far results lie apart that differ by roundings: the most of several runs, in norms."""

    def __init__(self, results):
        self.results = results
        self.logits = 0.0
        self.gradients = dict.fromkeys(results.gradients, 0.0)
        self.losses = [0.0] * len(results.training.losses)
        self.gradient_norms = list(self.losses)
        self.balance_losses = [0.0] * len(results.training.balance_losses)
        self.after = dict.fromkeys(results.training.after, 0.0)

    def add(self, logits, gradients, training):
        wanted = self.results
        self.logits = max(self.logits, (logits - wanted.logits).norm().item())
        grow(self.gradients, gradients, wanted.gradients)
        grow(self.after, training.after, wanted.training.after)
        grow_numbers(self.losses, training.losses, wanted.training.losses)
        grow_numbers(self.gradient_norms, training.gradient_norms, wanted.training.gradient_norms)
        grow_numbers(self.balance_losses, training.balance_losses, wanted.training.balance_losses)


def grow(most, values, wanted):
    for name in most:
        most[name] = max(most[name], (values[name] - wanted[name]).norm().item())


def grow_numbers(most, values, wanted):
    for i, value in enumerate(values):
        most[i] = max(most[i], abs(value - wanted[i]))


def measure_spread(config, weights, results):
    """Computes everything again with weights and gradients that are moved by a rounding each."""
    spread = Spread(results)
    for run in range(ROUNDINGS):
        random = torch.Generator().manual_seed(run)
        moved_weights = {name: moved(value, random) for name, value in weights.items()}
        model = with_weights(config, moved_weights)
        logits = logits_of(model, results.batches)
        gradients = gradients_of(model, results.batches)
        training = train(model, results.batches, results.max_grad_norm, move_gradients(random))
        spread.add(logits, gradients, training)
    return spread
