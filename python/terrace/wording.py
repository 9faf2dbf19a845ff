"""Rewords the library's errors: they name functions and flags of C, and a Python program reads its own names."""

import re


class Wording:
    """Replaces phrases in a text by others, the longest ones first."""

    def __init__(self, phrases):
        self._phrases = phrases
        self._pattern = re.compile("|".join(re.escape(each) for each in sorted(phrases, key=len, reverse=True)))

    def __call__(self, text):
        return self._pattern.sub(lambda found: self._phrases[found[0]], text)


# For users of terrace.session.
SESSION_PHRASES = {
    "the session is NULL; make one by terrace_session_create() or terrace_units_create()":
        "the session is closed; make another",
    "set state_tier to TERRACE_TIER_AUTO": "give state='auto'",
    "raise host_memory_bytes or the drives' budget_bytes, or": "raise host_memory, or",
    "by terrace_load(), or destroy it": "by load(), or close it",
    "set TERRACE_STEP_SKIP_MISSING": "give skip_missing=True",
    "add the tensor without TERRACE_TENSOR_FROZEN": "add the tensor as one that trains",
    "with TERRACE_STEP_GRADIENTS_ARRIVE": "with gradients_arrive=True",
    "host_memory_bytes": "host_memory",
    "TERRACE_DTYPE_FP32": "float32",
    "TERRACE_DTYPE_BF16": "bfloat16",
    "TERRACE_DTYPE_FP16": "float16",
    "TERRACE_STEP_SKIP_MISSING": "skip_missing",
    "TERRACE_STEP_GRADIENTS_ARRIVE": "gradients_arrive",
    "TERRACE_TENSOR_FROZEN": "frozen",
    "TERRACE_TIER_AUTO": "'auto'",
    "terrace_session_create()": "Session()",
    "terrace_session_destroy()": "close()",
    "terrace_group_add()": "add_group()",
    "terrace_tensor_add()": "add_tensor()",
    "terrace_session_prepare()": "prepare()",
    "terrace_gradient_add()": "add_gradient()",
    "terrace_gradient_complete()": "complete_gradient()",
    "terrace_gradient_view()": "gradient()",
    "terrace_gradient_square_sum()": "square_sum()",
    "terrace_gradient_borrow()": "add_gradient()",
    "terrace_gradient_lease()": "lease_gradient()",
    "terrace_lease_unversioned()": "__dlpack__()",
    "terrace_gradients_discard()": "discard_gradients()",
    "terrace_step_begin()": "begin_step()",
    "terrace_step_end()": "end_step()",
    "terrace_step()": "begin_step() and end_step()",
    "terrace_wait_parameter()": "wait_parameter()",
    "terrace_wait_norm()": "wait_norm()",
    "terrace_step_count()": "step_count()",
    "terrace_parameter_adopt()": "adopt_parameter()",
    "terrace_state_read()": "read_state()",
    "terrace_state_write()": "write_state()",
    "terrace_tensor_updates()": "updates()",
    "terrace_tensor_set_updates()": "set_updates()",
    "terrace_pause()": "pause()",
    "terrace_resume()": "resume()",
    "terrace_save()": "save()",
    "terrace_load()": "load()",
    "terrace_ledger_json()": "ledger()",
    "terrace_metrics_json()": "metrics()",
}

# For users of terrace.units.
UNITS_PHRASES = {
    "the session is NULL; make one by terrace_session_create() or terrace_units_create()":
        "the units are closed; make others",
    "set a tier to TERRACE_TIER_AUTO": "give one as 'auto'",
    "raise host_memory_bytes or the drives' budget_bytes, or": "raise host_memory, or",
    "set TERRACE_UNITS_CAN_ABANDON in terrace_units_options": "make the units by Units(), whose steps can be",
    "destroy it, and go on": "close it, and go on",
    "budget_bytes of nvme": "nvme",
    "host_memory_bytes": "host_memory",
    "saved_bytes": "saved_bytes of add()",
    "TERRACE_DTYPE_FP32": "float32",
    "TERRACE_DTYPE_BF16": "bfloat16",
    "TERRACE_DTYPE_FP16": "float16",
    "TERRACE_UNIT_FROZEN": "is_frozen",
    "TERRACE_UNITS_CAN_ABANDON": "what lets a step be abandoned",
    "TERRACE_TIER_AUTO": "'auto'",
    "terrace_units_create()": "Units()",
    "terrace_units_destroy()": "close()",
    "terrace_unit_add()": "add()",
    "terrace_units_record()": "record()",
    "terrace_units_prepare()": "prepare()",
    "terrace_units_fill()": "fill()",
    "terrace_units_step_begin()": "begin_step()",
    "terrace_unit_acquire()": "acquire()",
    "terrace_unit_release()": "release()",
    "terrace_unit_lease()": "lease()",
    "terrace_units_step_abandon()": "abandon_step()",
    "terrace_units_step_end()": "end_step()",
    "terrace_state_read()": "read_state()",
    "terrace_units_state_read()": "read_state()",
    "terrace_units_pause()": "pause()",
    "terrace_units_resume()": "resume()",
    "terrace_units_ledger_json()": "ledger()",
}
