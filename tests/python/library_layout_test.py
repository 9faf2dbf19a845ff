#!/usr/bin/env python3
"""Compares the structs of terrace.library with the structs of terrace.h, as a C compiler lays them out:
library_layout_test.py PACKAGE_FOLDER HEADER COMPILER
"""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE, HEADER, COMPILER = sys.argv[1:]
sys.path.insert(0, PACKAGE)

from terrace import library  # noqa: E402

STRUCTS = {"terrace_buffer": library.Buffer, "terrace_nvme_directory": library.NvmeDirectory,
           "terrace_hyperparameter": library.Hyperparameter, "terrace_session_options": library.SessionOptions,
           "terrace_group_options": library.GroupOptions, "terrace_tensor_options": library.TensorOptions,
           "terrace_step_options": library.StepOptions, "terrace_step_result": library.StepResult,
           "terrace_units_options": library.UnitsOptions, "terrace_unit_options": library.UnitOptions,
           "terrace_unit_memory": library.UnitMemory, "terrace_state_range": library.StateRange}
ERRORS = {f"TERRACE_ERROR_{name}": error.code for name, error in {
    "ARGUMENT": library.ArgumentError, "ORDER": library.OrderError, "DTYPE": library.DTypeError,
    "UNSUPPORTED": library.UnsupportedError, "DOES_NOT_FIT": library.DoesNotFitError,
    "ENVIRONMENT": library.UnsuitableSystemError, "IO": library.StorageError,
    "FULL_DISK": library.FullDiskError, "CORRUPT": library.CorruptStateError,
    "MISMATCH": library.StateMismatchError, "MISSING_GRADIENT": library.MissingGradientError,
    "PARAMETER_CHANGED": library.ParameterChangedError, "NOT_FINITE": library.NotFiniteError,
    "FORKED": library.ForkedError, "FAILED": library.FailedSessionError}.items()}
ENUMS = {**{f"TERRACE_TIER_{name.upper()}": value for name, value in library.TIERS.items()},
         **{f"TERRACE_DEVICE_{name.upper()}": value for name, value in library.DEVICES.items()},
         "TERRACE_DTYPE_FP32": library.DTYPES["float32"], "TERRACE_DTYPE_BF16": library.DTYPES["bfloat16"],
         "TERRACE_DTYPE_FP16": library.DTYPES["float16"], "TERRACE_ABI_VERSION": library.ABI_VERSION,
         "TERRACE_STEP_SKIP_MISSING": library.STEP_SKIP_MISSING,
         "TERRACE_STEP_GRADIENTS_ARRIVE": library.STEP_GRADIENTS_ARRIVE,
         "TERRACE_UNITS_CAN_ABANDON": library.UNITS_CAN_ABANDON, "TERRACE_UNIT_FROZEN": library.UNIT_FROZEN,
         "TERRACE_PASS_FORWARD": library.FORWARD, "TERRACE_PASS_BACKWARD": library.BACKWARD,
         "TERRACE_PART_PARAMETERS": library.PARAMETERS, "TERRACE_PART_GRADIENT": library.GRADIENT}


def main():
    expected = {}
    lines = []
    for name, struct in STRUCTS.items():
        expected[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, _ in struct._fields_:
            expected[f"offsetof({name}, {field})"] = getattr(struct, field).offset
    expected.update(ERRORS)
    expected.update(ENUMS)
    for expression in expected:
        lines.append(f'printf("%s=%ld\\n", "{expression}", (long)({expression}));')
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "layout.c")
        source.write_text('#include <stddef.h>\n#include <stdio.h>\n#include "terrace.h"\nint main(void) {\n'
                          + "\n".join(lines) + "\nreturn 0; }\n")
        program = Path(folder, "layout")
        subprocess.run([COMPILER, "-x", "c", f"-I{Path(HEADER).parent}", str(source), "-o", str(program)], check=True)
        told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    got = {line.rsplit("=", 1)[0]: int(line.rsplit("=", 1)[1]) for line in told.splitlines()}
    wrong = {name: (got[name], value) for name, value in expected.items() if got[name] != value}
    assert not wrong, f"in C and in Python: {wrong}"
    assert len(got) == len(expected)


main()
