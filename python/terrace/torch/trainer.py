"""Adds to the Trainer of transformers what it needs beside the optimizer."""

from terrace import library as lib
from terrace.torch.optimizer import TieredOptimizer


def _optimizer_of(trainer):
    optimizer = trainer.optimizer
    while optimizer is not None and not isinstance(optimizer, TieredOptimizer):
        optimizer = getattr(optimizer, "optimizer", None)  # Accelerate wraps it
    return optimizer


def _settings_of(trainer):
    """Returns whether the optimizer takes gradients in the backward, and its max_grad_norm."""
    optimizer = _optimizer_of(trainer)
    if optimizer is not None:
        return optimizer.takes_gradients, optimizer.max_grad_norm
    _, settings = trainer.optimizer_cls_and_kwargs or (None, {})
    takes = settings.get("take_gradients")
    return settings.get("updates") == "backward" if takes is None else takes, settings.get("max_grad_norm")


def _refuse_what_clips_twice(trainer):
    takes_gradients, max_grad_norm = _settings_of(trainer)
    if trainer.args.max_grad_norm and takes_gradients:
        raise lib.ArgumentError("the Trainer would clip gradients that the optimizer has taken: set max_grad_norm=0 in "
                                "TrainingArguments, and give max_grad_norm to the optimizer")
    if trainer.args.max_grad_norm and max_grad_norm:
        raise lib.ArgumentError("the Trainer would clip, and then the optimizer: set max_grad_norm=0 in "
                                "TrainingArguments, or give the optimizer none")


def attach(trainer):
    """Puts the gradient norm of an optimizer of this package into the logs of a transformers.Trainer, tells the
    optimizer which backward is the last of a step, and refuses settings that would clip a second time. Changes this
    object only. Returns the trainer."""
    from transformers import TrainerCallback

    _refuse_what_clips_twice(trainer)

    class Attached(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            optimizer = _optimizer_of(trainer)
            if optimizer is not None:
                optimizer.set_is_last_backward(lambda: trainer.accelerator.sync_gradients)

        def on_log(self, args, state, control, logs=None, **kwargs):
            optimizer = _optimizer_of(trainer)
            if optimizer is None or logs is None or "loss" not in logs or args.max_grad_norm:
                return  # a Trainer that clips knows the norm itself
            logs["grad_norm"] = optimizer.grad_norm
            if state.log_history:
                state.log_history[-1]["grad_norm"] = optimizer.grad_norm

    if not trainer.args.max_grad_norm:
        # Else the Trainer computes the norm of the tensors in .grad to log it.
        trainer._get_grad_norm = lambda model, grad_norm=None: grad_norm
    trainer.callback_handler.callbacks.insert(0, Attached())
    return trainer
