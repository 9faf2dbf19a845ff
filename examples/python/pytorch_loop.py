"""A loop of PyTorch whose optimizer keeps its state on a drive: pytorch_loop.py DIRECTORY

Trains a small model on made-up data, saves, and goes on from there twice, which gives the same bits.
"""

import argparse
import sys

import torch

import terrace.torch as tt


def make(directory):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    optimizer = tt.AdamW(model.named_parameters(), lr=1e-2, max_grad_norm=1.0, state="nvme", nvme=directory,
                         updates="forward", model=model)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def train(model, optimizer, schedule, steps):
    for step in steps:
        for micro_batch in range(4):
            random = torch.Generator().manual_seed(4 * step + micro_batch)
            x = torch.randn(16, 64, generator=random)
            loss = ((model(x) - x[:, :8].cumsum(1)) ** 2).mean()
            (loss / 4).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}, gradient norm {optimizer.grad_norm:.4f}")
    optimizer.finish_step()


def main(directory):
    model, optimizer, schedule = make(directory)
    train(model, optimizer, schedule, range(20))
    optimizer.save(directory + "/saved")
    kept = schedule.state_dict()
    train(model, optimizer, schedule, range(20, 40))

    again, optimizer, schedule = make(directory)
    optimizer.load(directory + "/saved")  # writes the parameters too
    schedule.load_state_dict(kept)
    optimizer.param_groups[0]["lr"] = kept["_last_lr"][0]
    train(again, optimizer, schedule, range(20, 40))
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
    print("resumed with the same bits:", same)
    return 0 if same else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0].rsplit(":", maxsplit=1)[0])
    parser.add_argument("directory", help="is there, and gets the optimizer's state and what is saved")
    sys.exit(main(parser.parse_args().directory))
