#!/usr/bin/env python3
"""Compares small offloaded models with unusual graphs to the same models without offload:
torch_offload_graphs_test.py PACKAGE_FOLDER

Needs TERRACE_LIBRARY, the library of this build.
"""

import copy
import os
import sys
import tempfile
import unittest

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from terrace.torch.offload import movement_of  # noqa: E402

torch.set_num_threads(1)
SIZE = 64


def batch(seed):
    return torch.randn(32, SIZE, generator=torch.Generator().manual_seed(seed))


def matrix():
    return nn.Parameter(torch.randn(SIZE, SIZE) * 0.1)


def optimizer_of(model):
    return tt.AdamW(model.parameters(), lr=1e-2, arithmetic="terrace")


class Layers(nn.Module):
    """Layers made by `block`, each of which gets the output of the one before."""

    def __init__(self, block, count=3):
        super().__init__()
        self.layers = nn.ModuleList([block() for _ in range(count)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Linears(nn.Module):
    """Two linear layers: a block like any other."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(x)))


def train(model, optimizer, steps=4, loss_of=None):
    told = []
    for step in range(steps):
        output = model(batch(step))
        loss = loss_of(model, output) if loss_of else output.square().mean()
        loss.backward()
        told.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return told


class GraphTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.nvme = folder.name

    def assert_same_training(self, make, run=train, **options):
        """Trains a model with and without offload. Returns the offloaded model, and its optimizer."""
        torch.manual_seed(1)
        plain = make()
        model = tt.offload(copy.deepcopy(plain), **options)
        expected = run(plain, optimizer_of(plain))
        optimizer = optimizer_of(model)
        self.assertEqual(run(model, optimizer), expected)
        told = model.state_dict()
        for name, value in plain.state_dict().items():
            self.assertTrue(torch.equal(value, told[name]), name)
        self.assertEqual([slot.name for slot in movement_of(model).units.slots if slot.is_resident], [])
        return model, optimizer

    def assert_all_ways(self, make, run=train):
        for options in ({}, {"activations": "host"}, {"nvme": self.nvme, "activations": "nvme"}):
            with self.subTest(options=options):
                trained = self.assert_same_training(make, run, **options)
        return trained

    def assert_runs_compiled(self, model, loss_of=None):
        movement, told = movement_of(model), []
        deviate = movement._deviate
        movement._deviate = lambda *a, **k: (told.append(1), deviate(*a, **k))
        train(model, movement.optimizer(), 1, loss_of)
        movement._deviate = deviate
        self.assertEqual(told, [])


class Backwards(GraphTest):
    """A backward that enters a unit without a call of the hooks on the unit's output."""

    def test_outputs_of_a_class_that_is_unknown(self):
        class Output:
            def __init__(self, hidden):
                self.hidden = hidden

        class Block(Linears):
            def forward(self, x):
                return Output(super().forward(x.hidden if isinstance(x, Output) else x))

        loss_of = lambda _, output: output.hidden.square().mean()  # noqa: E731
        model, optimizer = self.assert_all_ways(lambda: Layers(Block), lambda *a: train(*a, loss_of=loss_of))
        self.assert_runs_compiled(model, loss_of)

    def test_losses_that_are_attributes(self):
        class Block(Linears):
            def forward(self, x):
                self.loss = self.b(F.gelu(self.a(x) @ self.b.weight)).softmax(-1).square().mean()
                return x.detach()

        self.assert_all_ways(lambda: Layers(Block), lambda *a: train(
            *a, loss_of=lambda model, _: sum(layer.loss for layer in model.layers)))

    def test_inputs_that_are_leaves(self):
        class LowRank(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Parameter(torch.randn(8, SIZE) * 0.1), nn.Parameter(torch.randn(SIZE, 8) * 0.1)

            def forward(self, x):
                return F.linear(x if x.requires_grad else x.requires_grad_(), self.b @ self.a)

        self.assert_all_ways(lambda: nn.Sequential(LowRank(), LowRank()))

    def test_parameters_that_are_used_without_a_gradient_too(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = matrix()

            def forward(self, x):
                return F.linear(F.linear(x, self.w.detach()), self.w)

        self.assert_all_ways(lambda: nn.Sequential(nn.Linear(SIZE, SIZE), Block(), nn.Linear(SIZE, SIZE)))

    def test_a_node_that_reads_several_units(self):
        class Product(nn.Module):
            def __init__(self):
                super().__init__()
                self.w, self.inner = matrix(), Layers(Linears)

            def forward(self, x):
                return self.inner(F.linear(x, self.w * self.w.t())) @ self.w

        self.assert_all_ways(Product)

    def test_two_parameters_of_one_memory(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(SIZE, SIZE, bias=False)
                self.b.weight = nn.Parameter(self.a.weight.data)

            def forward(self, x):
                return self.b(F.gelu(self.a(x.detach().requires_grad_(True) * 1)))

        model = Layers(Tied, 2)
        model.forward = lambda x: model.layers[0](x) + model.layers[1](x)
        tt.offload(model)
        optimizer = optimizer_of(model)
        losses = train(model, optimizer)
        self.assertEqual(len(set(losses)), 4)
        self.assert_runs_compiled(model)

    def test_a_graph_that_is_stale(self):
        for options in ({}, {"activations": "host"}):
            for warm in (0, 2):
                model = tt.offload(Layers(Linears), **options)
                optimizer = optimizer_of(model)
                train(model, optimizer, warm)
                losses = [model(batch(seed)).square().mean() for seed in (1, 2)]
                losses[1].backward()
                optimizer.step()
                optimizer.zero_grad()
                with self.assertRaisesRegex(lib.OrderError, "backward.. before step"):
                    losses[0].backward()
                train(model, optimizer, 2)

    def test_tensors_that_are_changed_in_place(self):
        model = tt.offload(Layers(Linears))
        x = batch(1)
        loss = model(x).square().mean()
        x.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "inplace"):
            loss.backward()

    def test_gradients_of_gradients(self):
        model = tt.offload(Layers(Linears))
        x = batch(1).requires_grad_()
        with self.assertRaisesRegex(lib.UnsupportedError, "create_graph"):
            torch.autograd.grad(model(x).square().mean(), x, create_graph=True)

    def test_what_a_node_has_saved_is_read_outside_of_a_backward(self):
        model = tt.offload(nn.Sequential(nn.Linear(SIZE, SIZE)))
        optimizer = optimizer_of(model)
        for step in range(3):
            loss = model(batch(step).requires_grad_())
            saved = loss.grad_fn._saved_mat2
            self.assertTrue(torch.equal(saved, model.state_dict()["0.weight"].t()))
            loss.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


class HooksOfOthers(GraphTest):
    """Saved tensors that the hooks of gradient checkpointing, or of torch itself, take."""

    def test_checkpointing(self):
        """Checkpoints units whose output has an unknown class, two units as one, and a part of a part of a unit."""
        class Output:
            def __init__(self, hidden):
                self.hidden = hidden

        class Wrapping(Linears):
            def forward(self, x):
                return Output(super().forward(x))

        class Unwrapping(Layers):
            def forward(self, x):
                for layer in self.layers:
                    x = checkpoint(lambda y, layer=layer: layer(y).hidden, x, use_reentrant=False)
                return x

        class InPairs(Layers):
            def forward(self, x):
                return self.layers[2](checkpoint(lambda y: self.layers[1](self.layers[0](y)), x, use_reentrant=False))

        class Nesting(Linears):
            def forward(self, x):
                return x + self.b(checkpoint(lambda y: F.gelu(checkpoint(self.a, y, use_reentrant=False)), x,
                                             use_reentrant=False))

        class Whole(Layers):
            def forward(self, x):
                for layer in self.layers:
                    x = checkpoint(layer, x, use_reentrant=False)
                return x

        for make in (lambda: Unwrapping(Wrapping), lambda: InPairs(Linears), lambda: Whole(Nesting)):
            model, optimizer = self.assert_all_ways(make)
            self.assert_runs_compiled(model)

    def test_hooks_of_the_trainer(self):
        def run(model, optimizer):
            told = []
            for step in range(3):
                with torch.autograd.graph.save_on_cpu():
                    loss = model(batch(step)).square().mean()
                loss.backward()
                told.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
            return told

        self.assert_all_ways(lambda: Layers(Linears), run)


class Forwards(GraphTest):
    """Forwards that have no backward, or several."""

    def test_losses_that_are_not_used(self):
        """A loss is unused before the first step, after it, or at the end, and its graph may still be alive at the next
        forward."""
        def run(model, optimizer, warm, keeps):
            told, loss = [], None
            for step in range(8):
                if not keeps:
                    del loss
                loss = model(batch(step)).square().mean()
                told.append(loss.item())
                if step >= warm and step % 2 == 0:
                    continue
                loss.backward()
                if step == 5:
                    told.append(model(batch(77)).sum().item())
                optimizer.step()
                optimizer.zero_grad()
                loss = None if not keeps else loss
            return told

        for warm in (0, 3):
            for keeps in (True, False):
                with self.subTest(warm=warm, keeps=keeps):
                    model, optimizer = self.assert_all_ways(lambda: Layers(Linears),
                                                            lambda *a: run(*a, warm=warm, keeps=keeps))
                    train(model, optimizer, 1)
                    self.assert_runs_compiled(model)

    def test_a_unit_whose_output_is_not_used(self):
        class Branches(Layers):
            def forward(self, x):
                self.calls = getattr(self, "calls", 0) + 1
                y = self.layers[2](self.layers[0](x))
                z = self.layers[1](x)
                return y + z if self.calls % 2 else y + z.detach()

        def run(model, optimizer):
            for step in range(6):
                model(batch(step)).square().mean().backward()
                if step % 2:
                    optimizer.step()
                    optimizer.zero_grad()

        self.assert_all_ways(lambda: Branches(Linears), run)

    def test_evaluations_that_record_a_graph(self):
        """Such evaluations leave neither tasks nor files."""
        for warm in (0, 2):
            for alive in (True, False):
                model = tt.offload(Layers(Linears), nvme=self.nvme, activations="nvme")
                optimizer = optimizer_of(model)
                train(model, optimizer, warm)
                movement = movement_of(model)
                output = None
                for step in range(20):
                    output = output if alive else None
                    output = model(batch(step))
                output = None
                recording = movement._recording
                self.assertLessEqual(len(recording.tasks) if recording else movement.compiled.position, 2 * 3)
                one_forward = 3 * 4 * 32 * SIZE * 4
                self.assertLessEqual(recording.saved._end if recording else 0, 2 * one_forward)
                train(model, optimizer, 2)
                self.assert_runs_compiled(model)

    def test_no_grad_between_forward_and_recomputation(self):
        class Checkpointed(Layers):
            is_reentrant = True

            def forward(self, x):
                for layer in self.layers:
                    x = checkpoint(layer, x, use_reentrant=self.is_reentrant) if self.training else layer(x)
                return x

        def run(model, optimizer):
            told = []
            for step in range(6):
                loss = model(batch(step).requires_grad_()).square().mean()
                if step > 3:
                    with torch.no_grad():
                        told.append(model(batch(9)).sum().item())
                loss.backward()
                told.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
            return told

        for is_reentrant in (True, False):
            Checkpointed.is_reentrant = is_reentrant
            self.assert_all_ways(lambda: Checkpointed(Linears), run)

    def test_units_that_save_nothing_at_first(self):
        """A unit that saved nothing worth keeping while it was recorded gets room once it saves more."""
        model = tt.offload(Layers(Linears), nvme=self.nvme, activations="nvme")
        optimizer = optimizer_of(model)
        for size in (1, 1, 512, 512, 512):
            model(torch.randn(size, SIZE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            sizes = [part.saved_bytes for parts in movement_of(model).compiled.parts.values() for part in parts]
            self.assertTrue(size > 1 or not any(sizes), sizes)
        self.assertTrue(all(sizes), sizes)


class Reading(GraphTest):
    def test_a_parameter_that_another_module_reads(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.linear = nn.Embedding(16, SIZE), nn.Linear(SIZE, SIZE)

            def forward(self, x):
                return self.linear(self.embedding(x)) @ self.embedding.weight.t()

        model = tt.offload(Tied())
        with self.assertRaisesRegex(RuntimeError, "outside of the forward of its module.*materialize"):
            model(torch.arange(16))
        with tt.materialize(model):
            self.assertEqual(model.embedding.weight.sum().item(), model.state_dict()["embedding.weight"].sum().item())


class Units(GraphTest):
    """Which modules are moved as a whole, and what loads a part of such a module if that is used alone."""

    def names(self, model):
        return [unit.name for unit in movement_of(model).units.units]

    def test_lists_in_lists(self):
        class Nested(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.ModuleList([nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)])
                                             for _ in range(3)])

            def forward(self, x):
                for a, b in self.layers:
                    x = x + b(F.gelu(a(x)))
                return x

        model, _ = self.assert_all_ways(Nested)
        self.assertEqual(self.names(model), [f"layers.{i}.{j}" for i in range(3) for j in range(2)])
        self.assert_runs_compiled(model)

    def test_blocks_whose_forward_is_passed_over(self):
        class Bypassing(Layers):
            def forward(self, x):
                for layer in self.layers:
                    x = x + layer.b(F.gelu(layer.a(x)))
                with torch.no_grad():
                    self.layers[0].a(x)
                return x

        model, _ = self.assert_all_ways(lambda: Bypassing(Linears))
        self.assertEqual(self.names(model), [f"layers.{i}" for i in range(3)])
        self.assert_runs_compiled(model)

    def test_checkpointing_within_a_block(self):
        for is_reentrant in (True, False):
            class Block(Linears):
                def forward(self, x, is_reentrant=is_reentrant):
                    inner = super().forward
                    return self.a(checkpoint(lambda y: self.b(inner(y)), x, use_reentrant=is_reentrant))

            def run(model, optimizer):
                return train(nn.Sequential(InputsRequireGrad(), model), optimizer)

            class InputsRequireGrad(nn.Module):
                def forward(self, x):
                    return x.requires_grad_()

            with self.subTest(is_reentrant=is_reentrant):
                self.assert_all_ways(lambda: Layers(Block), run)

    def test_parameters_beside_blocks(self):
        """The model, and a module in it, have parameters of their own beside blocks. These parameters are a unit, and
        each block is one."""
        class Encoder(Layers):
            def __init__(self):
                super().__init__(Linears)
                self.position = nn.Parameter(torch.randn(SIZE))
                self.scales = nn.ParameterList([nn.Parameter(torch.randn(SIZE))])

            def forward(self, x):
                return super().forward(x + self.position) * self.scales[0]

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.token, self.encoder, self.head = nn.Parameter(torch.randn(SIZE)), Encoder(), nn.Linear(SIZE, 8)

            def forward(self, x):
                return self.head(self.encoder(x * self.token))

        model, _ = self.assert_all_ways(Model)
        self.assertEqual(self.names(model),
                         ["(model)", "encoder"] + [f"encoder.layers.{i}" for i in range(3)] + ["head"])
        self.assert_runs_compiled(model)
        parts = movement_of(model).compiled.parts
        saved = {unit.name: unit_parts[-1].saved_bytes for unit, unit_parts in parts.items()}
        self.assertTrue(all(saved[f"encoder.layers.{i}"] > 2 * 32 * SIZE * 4 for i in range(3)), saved)
        resident = []
        for block in model.encoder.layers:
            block.b.register_forward_hook(lambda *_: resident.append(
                [unit.name for unit in movement_of(model).units.units if unit.is_resident]))
        train(model, movement_of(model).optimizer(), 1)
        self.assertEqual(resident, [["(model)", "encoder", f"encoder.layers.{i}"] for i in range(3)])


if __name__ == "__main__":
    unittest.main()
