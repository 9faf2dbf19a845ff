#!/usr/bin/env python3
"""Tests terrace.torch's optimizers over parameters that two ranks share, by gloo: torch_ranks_test.py PACKAGE_FOLDER

The parameters are of FSDP2's fully_shard(), or DTensors of distribute_tensor(). Needs TERRACE_LIBRARY.
"""

import copy
import datetime
import os
import sys
import tempfile
import traceback
import unittest

if __name__ == "__main__":  # else this is a rank, which that process has started
    os.environ["TERRACE_TEST_PACKAGE"] = sys.argv.pop(1)
sys.path.insert(0, os.environ["TERRACE_TEST_PACKAGE"])
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch  # noqa: E402
import torch.distributed.checkpoint.state_dict as checkpoint  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402

import terrace.torch as tt  # noqa: E402
from terrace import library as lib  # noqa: E402

torch.set_num_threads(1)
RANKS = 2
STEPS = 50
WIDTH = 33  # so that the ranks have parts of different sizes


def make_model():
    """Makes a model with a parameter of size 1 in the first dimension, of which one rank has nothing."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 48), torch.nn.GELU(), torch.nn.LayerNorm(48),
                                torch.nn.Linear(48, 17))
    model.register_parameter("scale", torch.nn.Parameter(torch.ones(1, 17)))
    return model


def sharded_model():
    model = make_model()
    fully_shard(model[0])
    fully_shard(model)
    return model


def batch(step):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


def train(model, optimizer, steps):
    """Trains on the same batches on all ranks, so that the mean of the gradients is each rank's gradient, bit for bit.
    Returns the norms."""
    norms = []
    for step in steps:
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step / 20)
        for micro_batch in range(2):
            (((model(batch(2 * step + micro_batch)) * model_scale(model)) * (1 + step % 3)) ** 2).mean().backward()
        optimizer.step()
        norms.append(getattr(optimizer, "grad_norm", None))
        optimizer.zero_grad()
    return norms


def model_scale(model):
    scale = model.scale
    return scale.full_tensor() if isinstance(scale, DTensor) else scale


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def differences(model, expected):
    return [float((whole(a) - b.detach()).abs().max()) for a, b in zip(model.parameters(), expected.parameters())]


def trained(make, steps=range(STEPS), model=None):
    model = model or make_model()
    optimizer = make(model.parameters())
    return model, optimizer, train(model, optimizer, steps)


# ---- tasks of each rank, which return what the test looks at -----------------------------------------------


def same_bits_without_clipping(folder):
    """Compares fully_shard()'s parameters with whole ones, for AdamW, SGD and Lion, on the host and on a drive."""
    found = {}
    for name, make in {"adamw": lambda p, **more: tt.AdamW(p, **more), "sgd": lambda p, **more: tt.SGD(p, **more),
                       "lion": lambda p, **more: tt.Lion(p, **more)}.items():
        expected, _, expected_norms = trained(lambda p: make(p, lr=1e-2))
        for place in ({}, {"state": "nvme", "nvme": folder}):
            model, optimizer, norms = trained(lambda p: make(p, lr=1e-2, **place), model=sharded_model())
            worst = max(abs(a / b - 1) for a, b in zip(norms, expected_norms))
            found[name, bool(place)] = (max(differences(model, expected)), worst, "optimizer_state" in str(
                optimizer.ledger()))
    return found


def clipped(folder):
    """Compares with whole parameters, which are clipped by the norm as this rank sums it."""
    found = {}
    for arithmetic in ("torch", "terrace"):
        settings = {"lr": 1e-2, "max_grad_norm": 1.0, "arithmetic": arithmetic}
        expected, _, expected_norms = trained(lambda p: tt.AdamW(p, **settings))
        model, _, norms = trained(lambda p: tt.AdamW(p, **settings), model=sharded_model())
        found[arithmetic] = (max(differences(model, expected)), norms, expected_norms)
    return found


def torch_is_followed(folder):
    """Compares with torch.optim.AdamW over the same shards, and with clip_grad_norm_ of DTensors."""
    model, optimizer, norms = trained(lambda p: tt.AdamW(p, lr=1e-2, max_grad_norm=1.0), range(10), sharded_model())
    theirs = sharded_model()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, foreach=False)
    their_norms = []
    for step in range(10):
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step / 20)
        for micro_batch in range(2):
            (((theirs(batch(2 * step + micro_batch)) * model_scale(theirs)) * (1 + step % 3)) ** 2).mean().backward()
        their_norms.append(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0).full_tensor()))
        optimizer.step()
        optimizer.zero_grad()
    worst = max(abs(a / b - 1) for a, b in zip(norms, their_norms))
    return max(float((whole(a) - whole(b)).abs().max())
               for a, b in zip(model.parameters(), theirs.parameters())), worst


def resumed(folder):
    """Resumes at step 20: from files of each rank, from state_dict(), and by torch.distributed.checkpoint."""
    def make(parameters):
        return tt.AdamW(parameters, max_grad_norm=1.0)

    expected, _, _ = trained(make, model=sharded_model())
    expected_parameters = [whole(parameter) for parameter in expected.parameters()]

    def equal(model):
        return all(torch.equal(whole(a), b) for a, b in zip(model.parameters(), expected_parameters))

    first, optimizer, _ = trained(make, range(20), sharded_model())
    weights = copy.deepcopy(first.state_dict())
    optimizer.save(folder + "/state")
    state = copy.deepcopy(optimizer.state_dict())
    told = checkpoint.get_optimizer_state_dict(first, optimizer)
    found = {"fields": sorted(told["state"]["0.weight"]), "of scale": sorted(told["state"]["scale"]),
             "steps": {int(fields["step"]) for fields in told["state"].values()}}
    train(first, optimizer, range(20, STEPS))
    found["asked"] = equal(first)

    files = sharded_model()
    optimizer = make(files.parameters())
    optimizer.load(folder + "/state")
    found["steps of files"] = {int(fields["step"]) for fields in optimizer.state_dict()["state"].values()}
    train(files, optimizer, range(20, STEPS))
    found["files"] = equal(files)
    for way in ("state_dict", "checkpoint"):
        model = sharded_model()
        model.load_state_dict(weights)
        optimizer = make(model.parameters())
        if way == "state_dict":
            optimizer.load_state_dict(state)
        else:
            checkpoint.set_optimizer_state_dict(model, optimizer, told)
        train(model, optimizer, range(20, STEPS))
        found[way] = equal(model)
    found["folders"] = sorted(os.listdir(folder + "/state"))
    return found


def other_ranks_are_refused(folder):
    os.makedirs(folder + "/state/rank-00000-of-00003", exist_ok=True)
    torch.distributed.barrier()
    optimizer = tt.AdamW(sharded_model().parameters())
    try:
        optimizer.load(folder + "/state")
    except lib.StateMismatchError as error:
        return str(error)


def infinite_gradient(folder):
    """Only one rank's part has an infinite gradient. All ranks are told, and go on."""
    model = sharded_model()
    optimizer = tt.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, range(1))
    before = [whole(parameter) for parameter in model.parameters()]
    model(batch(0)).sum().backward()
    weight = model[0].weight
    if torch.distributed.get_rank() == 1:
        weight.grad.to_local()[0, 0] = float("inf")
    try:
        optimizer.step()
        told = None
    except lib.NotFiniteError as error:
        told = str(error)
    same = all(torch.equal(a, whole(b)) for a, b in zip(before, model.parameters()))
    optimizer.zero_grad()
    train(model, optimizer, range(1, 3))
    return told, same


def kinds_of_dtensors(folder):
    """Trains DTensors that are replicated, sharded in either dimension, or on a mesh of two dimensions, beside a plain
    parameter, with clipping."""
    mesh = init_device_mesh("cpu", (RANKS,))
    flat = init_device_mesh("cpu", (1, RANKS))
    tensors = [torch.randn(6, 10, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    kinds = [(mesh, [Replicate()]), (mesh, [Shard(0)]), (mesh, [Shard(1)]), (flat, [Replicate(), Shard(0)]), None]

    def made(share):
        return [torch.nn.Parameter(distribute_tensor(tensor.clone(), *kind) if share and kind else tensor.clone())
                for tensor, kind in zip(tensors, kinds)]

    def run(parameters):
        optimizer = tt.AdamW(parameters, lr=1e-2, max_grad_norm=0.5, arithmetic="terrace")
        norms = []
        for step in range(6):
            for i, parameter in enumerate(parameters):
                gradient = torch.randn(6, 10, generator=torch.Generator().manual_seed(100 * step + i)) / 20
                parameter.grad = distribute_tensor(gradient, parameter.device_mesh, parameter.placements) \
                    if isinstance(parameter, DTensor) else gradient
            optimizer.step()
            norms.append(optimizer.grad_norm)
        return [whole(parameter) for parameter in parameters], norms

    got, norms = run(made(True))
    expected, expected_norms = run(made(False))
    return max(float((a - b).abs().max()) for a, b in zip(got, expected)), max(
        abs(a / b - 1) for a, b in zip(norms, expected_norms)), min(norms), max(norms)


def empty_rank(folder):
    """A rank without any element of a parameter takes part, saves and loads."""
    def make():
        parameter = torch.nn.Parameter(distribute_tensor(torch.ones(1, 8), init_device_mesh("cpu", (RANKS,)),
                                                         [Shard(0)]))
        return parameter, tt.AdamW([parameter], lr=1e-2, max_grad_norm=1.0)

    def step(parameter, optimizer):
        (parameter * 3).sum().full_tensor().backward()
        optimizer.step()
        optimizer.zero_grad()

    parameter, optimizer = make()
    for _ in range(3):
        step(parameter, optimizer)
    optimizer.save(folder + "/state")
    other, second = make()
    second.load(folder + "/state")
    state = second.state_dict()["state"]
    for each in ((parameter, optimizer), (other, second)):
        step(*each)
    return (torch.equal(whole(parameter), whole(other)), optimizer.grad_norm, int(state[0]["step"]),
            optimizer.metrics() == {})


def flat_model(use_orig_params):
    """Returns a model of the first FSDP, whose parameters are flat, or views of flat ones."""
    return FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)


def refusals(folder):
    mesh = init_device_mesh("cpu", (RANKS,))
    model = sharded_model()
    found = []
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Partial()]))
    optimizer = tt.AdamW(model.parameters())
    train(model, optimizer, range(1))
    plain = make_model()
    whole_state = tt.AdamW(plain.parameters())
    train(plain, whole_state, range(1))
    for use in (lambda: tt.AdamW([("odd", partial)]),
                lambda: tt.AdamW(model.parameters(), updates="forward", model=model),
                lambda: tt.AdamW(model.parameters(), updates="backward"),
                lambda: optimizer.load_state_dict(whole_state.state_dict()),
                lambda: tt.AdamW(flat_model(False).parameters(), max_grad_norm=0.1),
                lambda: tt.AdamW(flat_model(True).named_parameters()),
                lambda: train(model, tt.AdamW(model.parameters(), take_gradients=True), range(1))):
        try:
            use()
            found.append(None)
        except lib.TerraceError as error:
            found.append(str(error))
    return found


TASKS = [same_bits_without_clipping, clipped, torch_is_followed, resumed, other_ranks_are_refused, infinite_gradient,
         kinds_of_dtensors, empty_rank, refusals]


def run_rank(rank, port, folder, answers):
    """Runs all tasks, since starting a rank takes longer than most of them."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    try:
        for task in TASKS:
            place = f"{folder}/{task.__name__}"
            os.makedirs(place, exist_ok=True)
            answers.put((rank, task.__name__, task(place), None))
    except BaseException:
        answers.put((rank, task.__name__, None, traceback.format_exc()))
        raise
    finally:
        torch.distributed.destroy_process_group()


class UnderRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = torch.multiprocessing.get_context("spawn")
        answers = context.Queue()
        cls.found = {task.__name__: {} for task in TASKS}
        with tempfile.TemporaryDirectory() as folder:
            ranks = [context.Process(target=run_rank, args=(rank, 21000 + os.getpid() % 20000, folder, answers))
                     for rank in range(RANKS)]
            for process in ranks:
                process.start()
            try:
                for _ in range(RANKS * len(TASKS)):
                    rank, task, result, failure = answers.get(timeout=240)
                    if failure is not None:
                        raise AssertionError(f"{task} of rank {rank}: {failure}")
                    cls.found[task][rank] = result
                for process in ranks:
                    process.join(60)
            finally:
                for process in ranks:
                    process.kill()

    def results_of(self, task):
        """Returns the result of the task on each rank."""
        return [self.found[task][rank] for rank in range(RANKS)]

    def test_bits_without_clipping(self):
        for found in self.results_of("same_bits_without_clipping"):
            self.assertEqual(len(found), 6)
            for form, (difference, norm, has_memory) in found.items():
                self.assertEqual(difference, 0, form)
                self.assertLess(norm, 1e-12, form)
                self.assertTrue(has_memory)

    def test_clipped_within_a_bound(self):
        """The norm is summed in another order than for whole parameters, so a coefficient may be another fp32 number.
        The 50 steps, each about as large as the learning rate, then differ by roundings."""
        first, second = self.results_of("clipped")
        self.assertEqual(first, second)
        for arithmetic, (difference, norms, expected) in first.items():
            self.assertTrue(0 < sum(norm > 1 for norm in norms) < STEPS, norms)
            self.assertLess(difference, 2e-5, arithmetic)
            for a, b in zip(norms, expected, strict=True):
                self.assertLess(abs(a / b - 1), 1e-5)

    def test_torch_is_followed(self):
        for difference, norm in self.results_of("torch_is_followed"):
            self.assertLess(difference, 2e-5)
            self.assertLess(norm, 1e-5)

    def test_resumed(self):
        for found in self.results_of("resumed"):
            self.assertEqual(found["fields"], ["exp_avg", "exp_avg_sq", "step"])
            self.assertEqual(found["of scale"], found["fields"])
            self.assertEqual((found["steps"], found["steps of files"]), ({20}, {20}))
            for way in ("asked", "files", "state_dict", "checkpoint"):
                self.assertTrue(found[way], way)
            self.assertEqual(found["folders"], ["rank-00000-of-00002", "rank-00001-of-00002"])

    def test_other_ranks_are_refused(self):
        for told in self.results_of("other_ranks_are_refused"):
            self.assertIn("saved by 3 ranks", told)

    def test_an_infinite_gradient_in_one_part(self):
        for told, same in self.results_of("infinite_gradient"):
            self.assertIn("on no rank", told)
            self.assertTrue(same)

    def test_kinds_of_dtensors(self):
        first, second = self.results_of("kinds_of_dtensors")
        self.assertEqual(first, second)
        difference, norm, smallest, largest = first
        self.assertTrue(smallest > 0.5, (smallest, largest))
        self.assertLess(norm, 1e-12)
        self.assertLess(difference, 1e-6)

    def test_a_rank_without_elements(self):
        for rank, (same, norm, steps, is_empty) in enumerate(self.results_of("empty_rank")):
            self.assertTrue(same)
            self.assertAlmostEqual(norm, 3 * 8 ** 0.5, places=6)
            self.assertEqual(steps, 3)
            self.assertEqual(is_empty, rank == 1)

    def test_refusals(self):
        for found in self.results_of("refusals"):
            for told, says in zip(found, ("odd is a DTensor placed as", "updates='step'", "", "not sharded",
                                            "fully_shard()", "fully_shard()", "take_gradients"), strict=True):
                self.assertIsNotNone(told)
                self.assertIn(says, told)


if __name__ == "__main__":
    unittest.main(verbosity=1)
