"""What the Trainer of transformers needs beside the optimizer."""

from terrace import library as lib
from terrace.torch.optimizer import TieredOptimizer


def _optimizer_of(trainer):
    optimizer = trainer.optimizer
    while optimizer is not None and not isinstance(optimizer, TieredOptimizer):
        optimizer = getattr(optimizer, "optimizer", None)  # Accelerate wraps it
    return optimizer


def _takes_gradients(trainer):
    optimizer = _optimizer_of(trainer)
    if optimizer is not None:
        return optimizer.takes_gradients
    _, settings = trainer.optimizer_cls_and_kwargs or (None, {})
    return settings.get("take_gradients") is not False


def _refuse_what_clips_twice(trainer):
    if trainer.args.max_grad_norm and _takes_gradients(trainer):
        raise lib.ArgumentError("the Trainer clips gradients that the optimizer has taken: set max_grad_norm=0 in "
                                "TrainingArguments, and give max_grad_norm to the optimizer")


def attach(trainer):
    """Puts the gradient norm of an optimizer of this package into the logs of a transformers.Trainer, tells the
    optimizer which backward is the last of a step, and refuses what would clip a second time. Touches this object
    only. Returns the trainer."""
    from transformers import TrainerCallback

    _refuse_what_clips_twice(trainer)

    class Attached(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            optimizer = _optimizer_of(trainer)
            if optimizer is not None:
                optimizer.set_is_last_backward(lambda: trainer.accelerator.sync_gradients)

        def on_log(self, args, state, control, logs=None, **kwargs):
            optimizer = _optimizer_of(trainer)
            if optimizer is None or logs is None or "loss" not in logs:
                return
            logs["grad_norm"] = optimizer.grad_norm
            if state.log_history:
                state.log_history[-1]["grad_norm"] = optimizer.grad_norm

    trainer.callback_handler.callbacks.insert(0, Attached())
    return trainer
