#!/usr/bin/env python3
"""Lets a model of bytes answer in transformers: load_with_transformers.py MODEL PROMPT END

Exits with 1 where the first line of the answer does not end so.
"""

import sys

import torch
import transformers

model_directory, prompt, end = sys.argv[1:]
transformers.logging.set_verbosity_error()
model = transformers.AutoModelForCausalLM.from_pretrained(model_directory)
ids = torch.tensor([list(prompt.encode())])
written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=160,
                         do_sample=False, pad_token_id=0)
answer = bytes(written[0, ids.shape[1]:].tolist()).decode("utf-8", "replace").split("\n")[0]
print(f"transformers, {model_directory}:\n  A:{answer}")
sys.exit(0 if answer.endswith(end) else 1)
