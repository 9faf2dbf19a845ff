"""Rewords the library's errors for users of an optimizer or an offloaded model of terrace.torch."""

from terrace.wording import SESSION_PHRASES, UNITS_PHRASES, Wording

_RULES = {
    "adamw": {"adam_beta1": "betas[0]", "adam_beta2": "betas[1]", "adam_epsilon": "eps"},
    "torch_adamw": {"adam_beta1": "betas[0]", "adam_beta2": "betas[1]", "adam_epsilon": "eps"},
    "lion": {"lion_beta1": "betas[0]", "lion_beta2": "betas[1]"},
    "sgd": {"sgd_momentum": "momentum"},
}
_CLASSES = {"adamw": "AdamW", "torch_adamw": "AdamW", "lion": "Lion", "sgd": "SGD"}

_SETTING_PHRASES = {
    **{f"{key} of {rule} is": f"{name} of {_CLASSES[rule]} is"
       for rule, keys in _RULES.items() for key, name in keys.items()},
    "the weight decay is": "weight_decay is",
}

OPTIMIZER_PHRASES = {
    **SESSION_PHRASES,
    **_SETTING_PHRASES,
    "a learning rate is": "lr of a group is",
    "the session has no tensor to train; add one by terrace_tensor_add()":
        "no parameter of the optimizer requires a gradient; give it one that does",
    "the session has failed before": "an earlier step has failed halfway",
    "the session does not fit": "the optimizer's state does not fit",
    "load a saved state by terrace_load(), or destroy it":
        "load a saved state by optimizer.load(), or make another optimizer and load_state_dict()",
    "go on from saved state, by terrace_load()": "go on from saved state, by optimizer.load()",
    "end it by terrace_step_end() first": "call optimizer.step() first",
    "go on with the next batch": "call zero_grad() and go on with the next batch",
    "call terrace_parameter_adopt()": "call optimizer.adopt([parameter])",
    "look at gradient_scale and max_grad_norm": "look at max_grad_norm",
    "add gradients by terrace_gradient_add()": "call backward() first",
    "call terrace_gradient_complete() when all of it is added":
        "call optimizer.set_is_last_backward(False) before the backward of every micro-batch but the last; a model "
        "whose backward gives a gradient in parts, as reentrant checkpointing does, takes updates='forward'",
    "terrace_session_prepare()": "the first backward",
    "terrace_pause()": "optimizer.pause()",
    "terrace_resume()": "optimizer.resume()",
    "terrace_load()": "optimizer.load()",
    "terrace_save()": "optimizer.save()",
    "terrace_step_end()": "optimizer.finish_step()",
    "terrace_step()": "optimizer.step()",
    "terrace_step_begin()": "optimizer.step()",
    "terrace_wait_parameter()": "optimizer.finish_step()",
    "terrace_gradients_discard()": "optimizer.zero_grad()",
    "terrace_parameter_adopt()": "optimizer.adopt()",
}

OFFLOAD_PHRASES = {
    **UNITS_PHRASES,
    **_SETTING_PHRASES,
    "the learning rate is": "lr of the groups is",
    "the units' session has failed before": "an earlier step of the offloaded model has failed halfway",
    "destroy it, and go on from state that was read before":
        "offload the model again, and go on from a state_dict() that was saved before",
    "raise host_memory_bytes or the drives' budget_bytes, or": "raise host_memory= of offload(), or",
    "set a tier to TERRACE_TIER_AUTO": "give one of offload()'s as 'auto'",
    "budget_bytes of nvme": "nvme= of offload()",
    "host_memory_bytes": "host_memory= of offload()",
    "saved_bytes": "activations= of offload()",
    "TERRACE_UNIT_FROZEN": "requires_grad_(False)",
    "terrace_units_prepare()": "the first optimizer.step()",
    "terrace_units_fill()": "the first optimizer.step()",
    "terrace_units_step_begin()": "the model's forward",
    "terrace_units_step_end()": "optimizer.step()",
    "terrace_units_pause()": "optimizer.pause()",
    "terrace_units_resume()": "optimizer.resume()",
    "terrace_units_ledger_json()": "optimizer.ledger()",
}

reworded = Wording(OPTIMIZER_PHRASES)
reworded_of_offload = Wording(OFFLOAD_PHRASES)
