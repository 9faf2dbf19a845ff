#!/usr/bin/env python3
"""Tensors of torch and numpy have memory of the library, by DLPack: torch_leases_test.py PACKAGE_FOLDER

Needs TERRACE_LIBRARY, the library of this build.
"""

import gc
import os
import subprocess
import sys
import tempfile
import threading
import unittest

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import numpy  # noqa: E402
import torch  # noqa: E402

from terrace import library as lib  # noqa: E402
from terrace.dlpack import Lease  # noqa: E402
from terrace.session import Session, buffer_of  # noqa: E402
from terrace.units import Units  # noqa: E402

SHAPE = (3, 1000)

AT_THE_END = f"""
import sys
sys.path.insert(0, {os.path.abspath(PACKAGE)!r})
import torch
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
from terrace.session import Session, buffer_of
values = torch.ones(1000)
buffer = buffer_of(values.data_ptr(), 1000, "float32")
session = Session()
session.add_tensor(session.add_group("sgd", {{}}), "weight", buffer, (1000,))
session.prepare()
session.add_gradient(0, buffer)
kept = torch.from_dlpack(session.lease_gradient(0))
capsule = session.lease_gradient(0).__dlpack__(max_version=(1, 0))
sys.kept = (kept, capsule)
session.close()
print(kept.sum().item())
"""


class _OldLease:
    """A lease as it looks to a consumer that asks for no version."""

    def __init__(self, lease):
        self._lease = lease

    def __dlpack_device__(self):
        return self._lease.__dlpack_device__()

    def __dlpack__(self, stream=None, **_):
        return self._lease.__dlpack__()


class Gradients(unittest.TestCase):
    def setUp(self):
        self.parameter = torch.ones(SHAPE)
        self.gradient = torch.arange(3000.0).reshape(SHAPE)
        self.session = Session()
        self.addCleanup(self.session.close)
        group = self.session.add_group("sgd", {"sgd_momentum": 0.0})
        self.session.add_tensor(group, "weight", buffer_of(self.parameter.data_ptr(), 3000, "float32"), SHAPE)
        self.session.prepare()

    def add(self):
        self.session.add_gradient(0, buffer_of(self.gradient.data_ptr(), 3000, "float32"))

    def is_pausable(self):
        with tempfile.TemporaryDirectory() as folder:
            try:
                self.session.pause(folder)
            except lib.OrderError as problem:
                self.assertIn("leases", str(problem))
                return False
            self.session.resume()
            return True

    def test_torch_has_the_memory_itself(self):
        self.add()
        address = torch.frombuffer(self.session.gradient(0), dtype=torch.float32).data_ptr()
        for lease in (self.session.lease_gradient(0), _OldLease(self.session.lease_gradient(0))):
            leased = torch.from_dlpack(lease)
            self.assertEqual((leased.data_ptr(), leased.shape, leased.dtype), (address, SHAPE, torch.float32))
            self.assertTrue(torch.equal(leased, self.gradient))
            self.assertFalse(self.is_pausable())
            del leased
            self.assertTrue(self.is_pausable())
        leased = torch.from_dlpack(self.session.lease_gradient(0))
        leased.fill_(2.0)
        self.session.begin_step([0.25])
        self.session.end_step()
        self.assertTrue(torch.equal(self.parameter, torch.full(SHAPE, 0.5)))

    def test_numpy_has_the_memory_itself(self):
        self.add()
        address = torch.frombuffer(self.session.gradient(0), dtype=torch.float32).data_ptr()
        for lease in (self.session.lease_gradient(0), _OldLease(self.session.lease_gradient(0))):
            leased = numpy.from_dlpack(lease)
            self.assertEqual((leased.ctypes.data, leased.shape, leased.dtype), (address, SHAPE, numpy.float32))
            self.assertTrue((leased == self.gradient.numpy()).all())
            del leased
        self.assertTrue(self.is_pausable())

    def test_a_capsule_that_ends_while_an_error_is_raised_leaves_it(self):
        self.add()
        with self.assertRaises(TypeError):
            int(self.session.lease_gradient(0).__dlpack__(max_version=(1, 0)))
        self.assertTrue(self.is_pausable())

    def test_a_capsule_that_nobody_takes_ends_its_lease(self):
        self.add()
        for version in (None, (0, 8), (1, 0), (2, 0)):
            capsule = self.session.lease_gradient(0).__dlpack__(max_version=version)
            self.assertIn('"dltensor"' if version in (None, (0, 8)) else '"dltensor_versioned"', repr(capsule))
            self.assertFalse(self.is_pausable())
            del capsule
            self.assertTrue(self.is_pausable())

    def test_tensors_outlive_the_session(self):
        self.add()
        leased = torch.from_dlpack(self.session.lease_gradient(0))
        self.session.close()
        gc.collect()
        self.assertTrue(torch.equal(leased, self.gradient))
        leased.mul_(2)
        kept = [leased]
        del leased
        ending = threading.Thread(target=kept.clear)
        ending.start()
        ending.join()
        with self.assertRaisesRegex(lib.ArgumentError, "closed"):
            torch.from_dlpack(self.session.lease_gradient(0))

    def test_the_end_of_the_process(self):
        told = subprocess.run([sys.executable, "-B", "-c", AT_THE_END], capture_output=True, text=True, check=False)
        self.assertEqual((told.returncode, told.stdout, told.stderr), (0, "1000.0\n", ""))

    def test_what_cannot_be_is_refused(self):
        with self.assertRaisesRegex(lib.MissingGradientError, "add_gradient"):
            torch.from_dlpack(self.session.lease_gradient(0))
        self.add()
        lease = self.session.lease_gradient(0)
        for asked in ({"stream": 1}, {"dl_device": (2, 0)}, {"copy": True}):
            with self.assertRaises(BufferError):
                lease.__dlpack__(**asked)
        self.assertEqual(lease.__dlpack_device__(), (1, 0))
        self.assertTrue(self.is_pausable())
        self.assertIsInstance(lease, Lease)


class UnitLeases(unittest.TestCase):
    def test_a_unit_is_trained_through_leases(self):
        tiers = dict.fromkeys(("parameters", "gradients", "optimizer", "saved"), "host")
        for dtype in (torch.float32, torch.bfloat16):
            units = Units("sgd", {"sgd_momentum": 0.0}, tiers=tiers, compute_dtype=str(dtype).split(".")[1])
            self.addCleanup(units.close)
            number = units.add("block", 5000)
            units.prepare()

            def ones(unit, field, first, count, address):
                out = torch.frombuffer((lib.ctypes.c_float * count).from_address(address), dtype=torch.float32)
                out.fill_(1.0 if field == "master" else 0.0)

            units.fill(0, ones)
            units.begin_step(0.25)
            memory = units.acquire(number, lib.FORWARD, 0)
            parameters = torch.from_dlpack(units.lease(number, lib.PARAMETERS))
            self.assertEqual((parameters.data_ptr(), parameters.dtype), (memory.parameters, dtype))
            self.assertTrue(torch.equal(parameters, torch.ones(5000, dtype=dtype)))
            with self.assertRaisesRegex(lib.OrderError, "leases"):
                units.release(number)
            with self.assertRaises(lib.MissingGradientError):
                torch.from_dlpack(units.lease(number, lib.GRADIENT))
            with self.assertRaisesRegex(BufferError, "read-only"):
                units.lease(number, lib.PARAMETERS).__dlpack__()
            if dtype == torch.bfloat16:
                # The capsule ends, without a consumer, while numpy's error is raised.
                with self.assertRaisesRegex(Exception, "dtype") as refused:
                    numpy.from_dlpack(units.lease(number, lib.PARAMETERS))
                self.assertNotIsInstance(refused.exception, SystemError)
            if dtype == torch.float32:
                array = numpy.from_dlpack(units.lease(number, lib.PARAMETERS))
                self.assertFalse(array.flags.writeable)
                del array
            del parameters
            units.release(number)
            units.acquire(number, lib.BACKWARD, 0)
            torch.from_dlpack(units.lease(number, lib.GRADIENT)).fill_(2.0)
            units.release(number)
            self.assertEqual(units.end_step().step, 1)
            out = torch.empty(5000)
            units.read_state(number, "master", buffer_of(out.data_ptr(), 5000, "float32"))
            self.assertTrue(torch.equal(out, torch.full((5000,), 0.5)))


if __name__ == "__main__":
    unittest.main()
