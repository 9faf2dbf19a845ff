"""The callback that Lightning's Trainer needs beside the optimizer: Trainer(callbacks=[OptimizerCallback()])."""

from lightning.pytorch.callbacks import Callback

from terrace import library as lib
from terrace.torch.optimizer import TieredOptimizer


class OptimizerCallback(Callback):
    """Logs the gradient norm of an optimizer of terrace.torch as "grad_norm", tells it which backward is the last of
    a step, and refuses settings that would clip a second time. Checkpoints and resuming need nothing: Lightning asks
    the optimizer for its state_dict()."""

    @staticmethod
    def _optimizers_of(trainer):
        return [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, TieredOptimizer)]

    def on_train_start(self, trainer, pl_module):
        if not trainer.gradient_clip_val:
            return
        if any(each.takes_gradients for each in self._optimizers_of(trainer)):
            raise lib.ArgumentError("Lightning would clip gradients that the optimizer has taken: leave "
                                    "gradient_clip_val out of its Trainer, and give max_grad_norm to the optimizer")
        if any(each.max_grad_norm for each in self._optimizers_of(trainer)):
            raise lib.ArgumentError("Lightning would clip, and then the optimizer: leave gradient_clip_val out of its "
                                    "Trainer, or give the optimizer no max_grad_norm")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        number = batch_idx + 1
        is_last = number % trainer.accumulate_grad_batches == 0 or number == trainer.num_training_batches
        for optimizer in self._optimizers_of(trainer):
            optimizer.set_is_last_backward(is_last)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for optimizer in self._optimizers_of(trainer)[:1]:
            if optimizer.grad_norm is not None:
                pl_module.log("grad_norm", optimizer.grad_norm)
