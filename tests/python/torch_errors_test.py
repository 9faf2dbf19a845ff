#!/usr/bin/env python3
"""Failures under terrace.torch end soon, and say what to do in Python: torch_errors_test.py PACKAGE_FOLDER

Needs TERRACE_LIBRARY.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

PACKAGE = sys.argv.pop(1)
sys.path.insert(0, PACKAGE)

import torch  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402
from terrace.session import Session, buffer_of  # noqa: E402
from terrace.torch.wording import reworded, reworded_of_offload  # noqa: E402
from terrace.units import Units  # noqa: E402
from terrace.wording import SESSION_PHRASES, UNITS_PHRASES, Wording  # noqa: E402
from torch_training import WIDTH, make_model  # noqa: E402

HEADERS = Path(PACKAGE).resolve().parent / "runtime" / "capi"
# Names of functions, flags and fields that only C has.
NAMES_OF_C = re.compile(r"terrace_\w+\(\)|TERRACE_\w+|_bytes\b|state_tier|gradient_scale|adam_|lion_b|sgd_m")
TIME_LIMIT = 120


class Words(unittest.TestCase):
    def check(self, error, use, *says):
        with self.assertRaises(error) as caught:
            use()
        text = str(caught.exception)
        self.assertIsNone(NAMES_OF_C.search(text), text)
        for word in says:
            self.assertIn(word, text)

    def trained(self, parameters=None, **more):
        parameters = parameters or [torch.nn.Parameter(torch.ones(64, 64))]
        optimizer = tt.AdamW(parameters, **more)
        self.step(optimizer)
        return parameters, optimizer

    @staticmethod
    def step(optimizer):
        for group in optimizer.param_groups:
            sum(parameter.float().sum() for parameter in group["params"]).backward()
        optimizer.step()

    def test_every_function_and_flag_has_words(self):
        """Functions and flags of a session and of units. Names of C's types and structs are left alone: only callers in
        C can get them wrong."""
        flags = re.findall(r"#define (TERRACE_(?:STEP|TENSOR)_\w+) ", (HEADERS / "terrace.h").read_text())
        self.assertGreater(len(flags), 2)
        unit_flags = re.findall(r"#define (TERRACE_UNITS?_\w+) ", (HEADERS / "terrace_units.h").read_text())
        self.assertGreater(len(unit_flags), 1)
        functions = [f"{function}()" for function in lib._FUNCTIONS]
        of_units = [name for name in functions if name.startswith("terrace_unit")] + unit_flags
        self.assertGreater(len(of_units), 13)
        for names, wordings in (
                ([*flags, *(name for name in functions if name not in of_units)], (Wording(SESSION_PHRASES), reworded)),
                (of_units, (Wording(UNITS_PHRASES), reworded_of_offload))):
            for name in names + ["TERRACE_TIER_AUTO"]:
                for words in wordings:
                    self.assertIsNone(NAMES_OF_C.search(words(name)), name)

    def test_what_sources_say_has_words(self):
        """Reads the sentences from the sources of sessions, where a text may be written in several parts."""
        root = HEADERS.parent
        sources = [*root.glob("session/parameter_*.cc"), *root.glob("session/state_*.cc"),
                   root / "session" / "update_thread.cc", root / "session" / "save_lock.cc",
                   *root.glob("session/unit_*.cc")]
        found = 0
        for source in sources:
            words = reworded_of_offload if source.name.startswith("unit_") else reworded
            text = re.sub(r'"\s*\n\s*"', "", source.read_text())
            for sentence in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text):
                if not sentence.endswith(".h") and re.search(r"terrace_\w+\(\)|TERRACE_[A-Z]", sentence):
                    found += 1
                    self.assertIsNone(re.search(r"terrace_\w+\(\)|TERRACE_[A-Z]", words(sentence)), sentence)
        self.assertGreater(found, 10)

    def test_settings(self):
        parameter = [torch.nn.Parameter(torch.ones(4))]
        for rule, settings, says in (
                (tt.AdamW, {"betas": (1.5, 0.9)}, "betas[0] of AdamW is 1.5"),
                (tt.AdamW, {"betas": (0.9, -1), "arithmetic": "terrace"}, "betas[1] of AdamW is -1"),
                (tt.AdamW, {"eps": 0.0}, "eps of AdamW is 0"),
                (tt.Lion, {"betas": (0.9, 1.0)}, "betas[1] of Lion is 1"),
                (tt.SGD, {"momentum": 2.0}, "momentum of SGD is 2"),
                (tt.SGD, {"weight_decay": -1.0}, "weight_decay is -1"),
                (tt.AdamW, {"nvme": "/tmp"}, "state='auto'"),
                (tt.AdamW, {"state": "nvme"}, "nvme"),
                (tt.AdamW, {"threads": -1}, "threads is -1"),
                (tt.AdamW, {"max_grad_norm": -1}, "max_grad_norm=-1")):
            with self.subTest(settings=settings):
                self.check(lib.ArgumentError, lambda: rule(parameter, **settings), says)
        optimizer = tt.AdamW(parameter)
        self.check(lib.ArgumentError, lambda: optimizer.add_param_group(
            {"params": [torch.nn.Parameter(torch.ones(4))], "betas": (2.0, 0.9)}), "betas[0]")
        self.assertEqual(len(optimizer.param_groups), 1)

    def test_steps(self):
        _, optimizer = self.trained()
        optimizer.param_groups[0]["lr"] = -1.0
        self.check(lib.ArgumentError, lambda: self.step(optimizer), "lr of a group is -1")
        parameter = torch.nn.Parameter(torch.ones(4))
        optimizer = tt.AdamW([parameter], max_grad_norm=1e-38)
        (parameter * 1e38).sum().backward()
        self.check(lib.NotFiniteError, optimizer.step, "nothing was updated", "max_grad_norm")
        _, optimizer = self.trained([torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))])
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].mul_(3)
        self.check(lib.ParameterChangedError, lambda: self.step(optimizer), "optimizer.adopt([parameter])")

    def test_nothing_to_train(self):
        parameter = torch.nn.Parameter(torch.ones(4))
        parameter.requires_grad_(False)
        self.check(lib.OrderError, lambda: tt.AdamW([parameter]).ledger(), "requires a gradient")

    def test_budgets(self):
        self.check(lib.DoesNotFitError, lambda: self.trained(host_memory="4KiB"), "host_memory", "state='nvme'")
        with tempfile.TemporaryDirectory() as folder:
            self.check(lib.DoesNotFitError, lambda: self.trained(host_memory="4KiB", state="nvme", nvme=folder),
                       "raise host_memory, or train fewer")

    def test_types(self):
        parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.check(lib.DTypeError, lambda: self.trained([parameter]), "group_0.parameter_0", "float64")
        parameter = torch.nn.Parameter(torch.ones(4, 4).t()[1:])
        self.check(lib.UnsupportedError, lambda: self.trained([parameter]), "contiguous")
        memory = torch.ones(8)
        whole, part = torch.nn.Parameter(memory), torch.nn.Parameter(memory[:4])
        self.check(lib.ArgumentError, lambda: self.trained([whole, part]), "share memory")
        embedding = torch.nn.Embedding(8, 4, sparse=True)
        optimizer = tt.AdamW(embedding.parameters())
        embedding(torch.tensor([1])).sum().backward()
        self.check(lib.UnsupportedError, optimizer.step, "sparse=False")
        del optimizer

    def test_files(self):
        _, optimizer = self.trained()
        with tempfile.TemporaryDirectory() as folder:
            self.check(lib.StorageError, lambda: optimizer.load(folder + "/nowhere"), "nowhere")
            optimizer.save(folder + "/state")
            _, other = self.trained([torch.nn.Parameter(torch.ones(3))])
            self.check(lib.StateMismatchError, lambda: other.load(folder + "/state"), "group_0.parameter_0")
            Path(folder, "state", "terrace_state.json").write_text("{")
            self.check(lib.CorruptStateError, lambda: optimizer.load(folder + "/state"), "terrace_state.json")
            self.step(optimizer)

    def test_sessions_without_torch(self):
        session = Session()
        self.check(lib.OrderError, session.prepare, "add_tensor()")
        self.check(lib.OrderError, session.ledger, "prepare()")
        self.check(lib.OrderError, lambda: session.wait_parameter(0), "prepare()")
        group = session.add_group("sgd", {})
        parameter = torch.ones(4)
        session.add_tensor(group, "weight", buffer_of(parameter.data_ptr(), 4, "float32"), (4,))
        session.prepare()
        self.check(lib.OrderError, lambda: session.add_group("sgd", {}), "prepare()")
        self.check(lib.MissingGradientError, lambda: session.begin_step([0.1]), "add_gradient()")
        self.check(lib.OrderError, session.end_step, "begin_step()")
        self.check(lib.OrderError, lambda: session.complete_gradient(0), "gradients_arrive=True")
        self.check(lib.ArgumentError, lambda: session.read_state(0, "exp_avg", buffer_of(
            parameter.data_ptr(), 4, "float32")), "read_state()")
        session.close()
        self.check(lib.ArgumentError, lambda: session.step_count(), "closed")


class Libraries(unittest.TestCase):
    def refused(self, library):
        with unittest.mock.patch.object(lib, "_open", return_value=library), \
                self.assertRaisesRegex(ImportError, "install both of one version") as caught:
            lib._load()
        return str(caught.exception)

    def test_another_version(self):
        """Loads an older library of the same ABI, one of an older ABI, and one that is not Terrace's."""
        names = ["terrace_abi_version", "terrace_capsule_end", *lib._FUNCTIONS, "terrace_last_error", "terrace_version"]

        def made(version, lacking=()):
            return SimpleNamespace(**{name: unittest.mock.Mock(return_value=version) for name in names
                                      if name not in lacking})

        last = list(lib._FUNCTIONS)[-1]
        self.assertIn(f"found {lib.ABI_VERSION} without {last}()", self.refused(made(lib.ABI_VERSION, {last})))
        self.assertIn("found 0:", self.refused(made(0)))
        self.assertIn("lacks terrace_abi_version()", self.refused(ctypes.CDLL(None)))
        with unittest.mock.patch.object(lib, "_open", return_value=made(lib.ABI_VERSION)):
            lib._load()


PROLOGUE = """
import os, resource, signal, sys, threading, warnings
warnings.simplefilter("ignore")
import torch
import terrace.torch as tt
from terrace import library as lib
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
x = torch.randn(4, 256)
def train(optimizer, steps=1):
    for _ in range(steps):
        (model(x) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


class OffloadedWords(unittest.TestCase):
    """Errors of units, and of offload(), which is built on units."""

    check = Words.check

    def test_units_without_torch(self):
        tiers = dict.fromkeys(("parameters", "gradients", "optimizer", "saved"), "host")
        self.check(lib.ArgumentError, lambda: Units("adamw", {}, tiers=tiers, nvme="/tmp"), "'auto'")
        units = Units("adamw", {}, tiers=tiers)
        self.check(lib.OrderError, units.prepare, "add()")
        number = units.add("block", 4)
        self.check(lib.OrderError, lambda: units.fill(0, None), "prepare()")
        units.record(number, lib.FORWARD, 0)
        self.check(lib.ArgumentError, units.prepare, "add its backward")
        self.check(lib.FailedSessionError, units.prepare, "close it")
        units.close()
        units = Units("adamw", {}, tiers=tiers)
        units.add("block", 4)
        for task_pass in (lib.FORWARD, lib.BACKWARD):
            units.record(number, task_pass, 0)
        units.prepare()
        self.check(lib.OrderError, lambda: units.begin_step(0.1), "fill()")
        units.fill(0, lambda unit, field, first, count, address: None)
        self.check(lib.ArgumentError, lambda: units.begin_step(-1.0), "learning rate")
        self.check(lib.OrderError, units.end_step, "begin_step()")
        units.begin_step(0.1)
        self.check(lib.OrderError, lambda: units.begin_step(0.1), "end_step()")
        units.acquire(number, lib.FORWARD, 0)
        self.check(lib.OrderError, lambda: units.acquire(number, lib.BACKWARD, 0), "release()")
        units.close()
        self.check(lib.ArgumentError, units.prepare, "closed")

    def test_offloaded_models(self):
        model = tt.offload(make_model())
        optimizer = tt.AdamW(model.parameters(), betas=(2.0, 0.9))
        self.check(lib.ArgumentError, lambda: self.offloaded_step(model, optimizer), "betas[0] of AdamW is 2")
        optimizer = tt.AdamW(model.parameters())
        self.offloaded_step(model, optimizer)
        optimizer.param_groups[0]["lr"] = -1.0
        self.check(lib.ArgumentError, lambda: self.offloaded_step(model, optimizer), "lr of the groups is -1")
        model = tt.offload(make_model(), host_memory="4KiB")
        self.check(lib.DoesNotFitError, lambda: self.offloaded_step(model, tt.AdamW(model.parameters())),
                   "host_memory= of offload()")

    @staticmethod
    def offloaded_step(model, optimizer):
        model(torch.ones(2, WIDTH)).square().mean().backward()
        try:
            optimizer.step()
        finally:
            optimizer.zero_grad()


class Failures(unittest.TestCase):
    """Failures, each in a process of its own with a time limit."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_program(self, body, status=0):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "FOLDER": self.folder}
        done = subprocess.run([sys.executable, "-c", PROLOGUE + textwrap.dedent(body)], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def test_a_forked_child(self):
        told = self.run_program("""
            optimizer = tt.AdamW(model.parameters(), updates="forward", model=model)
            train(optimizer, 2)
            child = os.fork()
            if child == 0:
                for use in (lambda: train(optimizer), optimizer.finish_step, optimizer.state_dict,
                            lambda: optimizer.save("/nowhere/state")):
                    try:
                        use()
                    except lib.ForkedError as error:
                        print(error, flush=True)
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            train(optimizer)
            """)
        self.assertGreaterEqual(told.count("spawn"), 3, told)

    def test_a_child_that_ends_as_python_does(self):
        """The parent's files and threads stay the parent's."""
        self.run_program("""
            optimizer = tt.AdamW(model.parameters(), state="nvme", nvme=os.environ["FOLDER"])
            train(optimizer)
            child = os.fork()
            if child == 0:
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            train(optimizer, 2)
            """)

    def test_a_full_disk(self):
        """A limit on the size of files stands for a full disk. The state, and what was saved before, stay."""
        told = self.run_program("""
            where = os.environ["FOLDER"]
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
            optimizer = tt.AdamW(model.parameters(), state="nvme", nvme=where)
            try:
                train(optimizer)
            except lib.DoesNotFitError as error:
                print("state:", error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            for parameter in model.parameters():
                parameter.grad = None
            optimizer = tt.AdamW(model.parameters())
            train(optimizer)
            optimizer.save(where + "/state")
            first = [parameter.detach().clone() for parameter in model.parameters()]
            train(optimizer)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, resource.RLIM_INFINITY))
            for use in (lambda: optimizer.save(where + "/state"), optimizer.state_dict):
                try:
                    use()
                except lib.StorageError as error:
                    print(type(error).__name__, error)
            train(optimizer)
            optimizer.load(where + "/state")
            assert all(torch.equal(a, b) for a, b in zip(first, model.parameters()))
            """)
        self.assertIn("state:", told)
        self.assertEqual(told.count("Error"), 2, told)
        self.assertIn("state_dict()", told)

    def test_a_drive_without_room(self):
        """Uses a file system of 1 MiB, in the child's own mount namespace, if the machine allows it."""
        if subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", self.folder],
                          capture_output=True, timeout=TIME_LIMIT).returncode != 0:
            self.skipTest("no file system can be mounted here")
        program = PROLOGUE + textwrap.dedent("""
            where = os.environ["FOLDER"]
            optimizer = tt.AdamW(model.parameters(), state="nvme", nvme=where)
            try:
                train(optimizer)
            except lib.DoesNotFitError as error:
                print(type(error).__name__, error)
            for parameter in model.parameters():
                parameter.grad = None
            optimizer = tt.AdamW(model.parameters())
            train(optimizer)
            try:
                optimizer.save(where + "/state")
            except lib.StorageError as error:
                print(type(error).__name__, error)
            train(optimizer)
            """)
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", f"mount -t tmpfs -o size=1m none {self.folder} && exec \"$0\" -c \"$1\"",
             sys.executable, program], env={**os.environ, "PYTHONPATH": PACKAGE, "FOLDER": self.folder}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("DoesNotFitError", done.stdout)
        self.assertIn("FullDiskError", done.stdout)

    def test_an_exception_in_the_loop(self):
        """Raises in a backward, and between backward and step(). Training goes on afterwards, in each form."""
        self.run_program("""
            class Boom(Exception):
                pass
            def boom(gradient):
                raise Boom
            for form in ({}, {"updates": "forward", "model": model}, {"updates": "backward"},
                         {"state": "nvme", "nvme": os.environ["FOLDER"]}):
                with warnings.catch_warnings():
                    optimizer = tt.AdamW(model.parameters(), **form)
                train(optimizer, 2)
                hook = model[2].weight.register_hook(boom)
                try:
                    train(optimizer)
                except Boom:
                    pass
                else:
                    raise AssertionError("no exception")
                hook.remove()
                if form.get("updates") == "backward":
                    optimizer.step()
                optimizer.zero_grad()
                train(optimizer, 2)
                optimizer.finish_step()
            """)

    def test_the_end_of_the_interpreter(self):
        """The interpreter ends while a step is under way: by return, by an exception, by sys.exit()."""
        drive = 'state="nvme", nvme=os.environ["FOLDER"]'
        for form, ending, status in ((f'updates="forward", model=model, {drive}', "pass", 0),
                                     ('updates="forward", model=model', "raise KeyError('boom')", 1),
                                     (f'updates="backward", {drive}', "sys.exit(3)", 3)):
            with self.subTest(form=form):
                self.run_program(f"""
                    optimizer = tt.AdamW(model.parameters(), {form})
                    train(optimizer, 2)
                    (model(x) ** 2).mean().backward()
                    if optimizer._updates == "forward":
                        optimizer.step()
                    {ending}
                    """, status)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_signal(self):
        """Ctrl-C while a step waits raises KeyboardInterrupt, and the interpreter ends."""
        self.run_program("""
            optimizer = tt.AdamW(model.parameters(), state="nvme", nvme=os.environ["FOLDER"])
            train(optimizer)
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                train(optimizer, 10**6)
            except KeyboardInterrupt:
                sys.exit(5)
            """, 5)


if __name__ == "__main__":
    unittest.main(verbosity=1)
