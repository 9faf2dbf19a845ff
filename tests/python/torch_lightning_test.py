#!/usr/bin/env python3
"""terrace.torch under Lightning's fit(): torch_lightning_test.py PACKAGE_FOLDER

Needs TERRACE_LIBRARY.
"""

import logging
import os
import sys
import tempfile
import unittest
import warnings

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import lightning  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from terrace.torch.lightning import OptimizerCallback  # noqa: E402
from torch_training import WIDTH, make_model  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
ACCUMULATION = 4
EPOCHS = 3
RATE = 5e-3


def rate_at(step):
    return 1 / (1 + step / 5)


class Module(lightning.LightningModule):
    def __init__(self, settings):
        super().__init__()
        self.model = make_model()
        self.settings = settings
        self.norms = []

    def training_step(self, batch, batch_idx):
        return (self.model(batch[0]) ** 2).mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if "grad_norm" in self.trainer.callback_metrics:
            self.norms.append(float(self.trainer.callback_metrics["grad_norm"]))

    def configure_optimizers(self):
        model = self.model if self.settings.get("updates") == "forward" else None
        optimizer = tt.AdamW(self.model.parameters(), lr=RATE, model=model, **self.settings)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def batches():
    """Returns 18 batches, so that an epoch ends with a window of 2."""
    data = torch.randn(18 * 4, WIDTH, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4)


class UnderLightning(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def fit(self, settings, resume=None, **more):
        module = Module(settings)
        keeps = ModelCheckpoint(dirpath=self.folder + "/kept", filename="{epoch}", save_top_k=-1,
                                enable_version_counter=False)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=EPOCHS, accumulate_grad_batches=ACCUMULATION, logger=False,
            enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
            callbacks=[OptimizerCallback(), keeps], default_root_dir=self.folder, **more)
        trainer.fit(module, batches(), ckpt_path=resume, weights_only=True if resume else None)
        for optimizer in trainer.optimizers:
            optimizer.finish_step()
        return [parameter.detach().clone() for parameter in module.parameters()], module

    def in_a_loop(self, settings):
        model = make_model()
        optimizer = tt.AdamW(model.parameters(), lr=RATE, **settings)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
        norms = []
        for _ in range(EPOCHS):
            rows = list(batches())
            for number, (x,) in enumerate(rows):
                ((model(x) ** 2).mean() / ACCUMULATION).backward()
                if number % ACCUMULATION == ACCUMULATION - 1 or number == len(rows) - 1:
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    norms.append(optimizer.grad_norm)
        return [parameter.detach() for parameter in model.parameters()], norms

    def check(self, got, expected):
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)))

    def test_fit_is_as_a_loop(self):
        settings = {"max_grad_norm": 0.3}
        expected, norms = self.in_a_loop(settings)
        self.assertTrue(0 < sum(norm > 0.3 for norm in norms) < len(norms), norms)
        drive = {"state": "nvme", "nvme": self.folder}
        for form in ({}, drive, {"updates": "forward"}, {"take_gradients": True}):
            with self.subTest(form=form):
                got, module = self.fit({**settings, **form})
                self.check(got, expected)
                self.assertLess(max(abs(a - b) for a, b in zip(sorted(set(module.norms)), sorted(norms))), 1e-6)
        expected, _ = self.in_a_loop({})
        for form in ({}, {"updates": "backward"}):
            with self.subTest(form=form):
                self.check(self.fit(form)[0], expected)

    def test_resumed(self):
        for settings in ({"max_grad_norm": 0.3}, {"updates": "forward", "max_grad_norm": 0.3},
                         {"updates": "backward"}):
            with self.subTest(settings=settings):
                expected, _ = self.fit(settings)
                self.check(self.fit(settings, resume=f"{self.folder}/kept/epoch=0.ckpt")[0], expected)

    def test_clipping_by_lightning(self):
        """Lightning clips the gradients in .grad. Clipping a second time, or clipping taken gradients, is refused."""
        expected, norms = self.in_a_loop({"max_grad_norm": 0.3})
        self.assertTrue(any(norm > 0.3 for norm in norms), norms)
        for a, b in zip(self.fit({}, gradient_clip_val=0.3)[0], expected, strict=True):
            self.assertLess(float((a - b).abs().max()), 1e-5)
        for settings in ({"max_grad_norm": 1.0}, {"take_gradients": True}, {"updates": "backward"}):
            with self.assertRaisesRegex(lib.ArgumentError, "gradient_clip_val"):
                self.fit(settings, gradient_clip_val=1.0)


if __name__ == "__main__":
    unittest.main(verbosity=1)
