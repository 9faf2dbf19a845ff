"""A Trainer of transformers with an optimizer whose state is on a drive: huggingface_trainer.py DIRECTORY

Trains a small GPT-2 on made-up text. Its checkpoints in DIRECTORY/checkpoints have the optimizer's state.
"""

import argparse
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import terrace.torch as tt


class Texts(torch.utils.data.Dataset):
    """Made-up texts, each of which counts from another number."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = (torch.arange(16) + index) % 50
        return {"input_ids": ids, "labels": ids}


def main(directory):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(output_dir=f"{directory}/checkpoints", per_device_train_batch_size=4,
                                  gradient_accumulation_steps=4, max_steps=20, logging_steps=5, save_steps=10,
                                  learning_rate=1e-2, max_grad_norm=0, use_cpu=True, report_to=[], disable_tqdm=True)
    settings = {"lr": 1e-2, "max_grad_norm": 1.0, "state": "nvme", "nvme": directory}
    trainer = Trainer(model, arguments, train_dataset=Texts(), optimizer_cls_and_kwargs=(tt.AdamW, settings))
    tt.attach(trainer)  # gives it the gradient norm for its log
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return 0 if losses[-1] < losses[0] else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0].rsplit(":", maxsplit=1)[0])
    parser.add_argument("directory", help="is there, and gets the optimizer's state and what is saved")
    sys.exit(main(parser.parse_args().directory))
