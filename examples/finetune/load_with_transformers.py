#!/usr/bin/env python3
"""Lets a model of bytes answer in transformers: load_with_transformers.py MODEL END ENOUGH PROMPT...

Exits with 1 if fewer than ENOUGH answers have a first line that ends with END.
"""

import sys

import torch
import transformers

model_directory, end, enough, *prompts = sys.argv[1:]
transformers.logging.set_verbosity_error()
model = transformers.AutoModelForCausalLM.from_pretrained(model_directory)


def answer_to(prompt):
    """Returns the first line of the answer, with the likeliest token at each place."""
    ids = torch.tensor([list(prompt.encode())])
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=160,
                             do_sample=False, pad_token_id=0)
    return bytes(written[0, ids.shape[1]:].tolist()).decode("utf-8", "replace").split("\n")[0]


answers = [answer_to(prompt) for prompt in prompts]
kept = sum(answer.endswith(end) for answer in answers)
print(f"transformers, {model_directory}: {kept} of {len(answers)} answers end as promised\n"
      f"  A:{answers[0]}")
sys.exit(0 if kept >= int(enough) else 1)
