#!/usr/bin/env python3
"""Compares terrace.torch.AdamW under torch.amp.GradScaler with torch's AdamW: torch_scaler_test.py PACKAGE_FOLDER

Autocast computes in fp16 on the CPU. Needs TERRACE_LIBRARY.
"""

import sys
import unittest

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from torch_training import WIDTH, make_model  # noqa: E402

STEPS = 20
OVERFLOWS = {4, 11}  # steps whose gradients are infinite
SETTINGS = {"lr": 3e-3, "weight_decay": 0.05}


def train(make, max_norm):
    """Returns the model, the optimizer, each step's scale, the steps that changed parameters, and the norms."""
    model = make_model()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8, growth_interval=3)
    scales, changed, norms = [], set(), []
    for step in range(STEPS):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
        with torch.autocast("cpu", torch.float16):
            loss = (model(x).float() ** 2).mean()
        if step in OVERFLOWS:
            loss = loss * 1e38 * 1e38
        scaler.scale(loss).backward()
        if max_norm:
            scaler.unscale_(optimizer)
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        if any(not torch.equal(a, b) for a, b in zip(before, model.parameters())):
            changed.add(step)
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return model, optimizer, scales, changed, norms


class UnderGradScaler(unittest.TestCase):
    def test_overflows_skip_the_step_and_the_rest_is_torchs(self):
        """Scales and skipped steps are the same as torch's. Torch's square roots are not correctly rounded on every
        processor, and a forward in fp16 amplifies that: two units of fp32 in a step, 18 steps of 3e-3."""
        for max_norm in (0.5, 0):
            with self.subTest(max_norm=max_norm):
                theirs = train(lambda p: torch.optim.AdamW(p, foreach=False, fused=False, **SETTINGS), max_norm)
                ours = train(lambda p: tt.AdamW(p, **SETTINGS), max_norm)
                self.assertEqual(ours[2], theirs[2])
                self.assertEqual(ours[3], set(range(STEPS)) - OVERFLOWS)
                self.assertEqual(ours[3], theirs[3])
                if max_norm:
                    self.assertTrue(0 < sum(norm > max_norm for norm in ours[4]) < STEPS, ours[4])
                for a, b in zip(ours[0].parameters(), theirs[0].parameters(), strict=True):
                    self.assertLess(float((a - b).detach().abs().max()), 2e-5)
                state = ours[1].state_dict()["state"]
                self.assertEqual({int(fields["step"]) for fields in state.values()}, {STEPS - len(OVERFLOWS)})

    def test_one_step_has_torchs_state(self):
        """Unscaled and clipped gradients give the same state as torch's, bit for bit."""
        first = []
        for make in (lambda p: torch.optim.AdamW(p, foreach=False, fused=False, **SETTINGS),
                     lambda p: tt.AdamW(p, **SETTINGS)):
            model = make_model()
            optimizer = make(model.parameters())
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8)
            with torch.autocast("cpu", torch.float16):
                loss = (model(torch.ones(8, WIDTH)).float() ** 2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            first.append(optimizer.state_dict()["state"])
        for number, fields in first[0].items():
            for name in ("exp_avg", "exp_avg_sq"):
                self.assertTrue(torch.equal(fields[name], first[1][number][name]), (number, name))

    def test_gradients_that_were_taken_are_missed(self):
        """The optimizer says that they are missing before anything was updated, also under the backward."""
        for form in ({"take_gradients": True}, {"updates": "backward"}):
            model = make_model()
            optimizer = tt.AdamW(model.parameters(), **form)
            scaler = torch.amp.GradScaler("cpu")
            before = [parameter.detach().clone() for parameter in model.parameters()]
            scaler.scale(model(torch.ones(2, WIDTH)).sum()).backward()
            with self.assertRaisesRegex(lib.OrderError, "the optimizer has taken.*take_gradients=False"):
                scaler.step(optimizer)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, model.parameters())))


if __name__ == "__main__":
    unittest.main(verbosity=1)
