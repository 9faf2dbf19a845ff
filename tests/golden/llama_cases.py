"""Cases of gpt2 and llama. The option that a case is about is the first part of its changes."""

from golden_case import Case, Change

VOCABULARY = 40

GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 48,
    "n_positions": 24,
    "layer_norm_epsilon": 5e-2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

# Without rope, a bias of keys moves all scores of a query alike, so softmax does not see it.
KEY_BIAS = ("c_attn.bias",)

# The sizes of all other cases: a layer has 5,440 parameters.
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

# The embeddings are so small that epsilon counts even if it is 1e-6.
TINY_EMBEDDING = 0.003

SHORT_FACTOR = [1.0, 1.3, 1.9, 3.1]
LONG_FACTOR = [1.1, 4.0, 9.0, 14.0]


def rope(kind, **keys):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **keys}}


def rope_change(name, parameters, **keys):
    """The same rope with other values; a value of ... removes the key."""
    changed = {**parameters["rope_parameters"], **keys}
    changed = {key: value for key, value in changed.items() if value is not ...}
    return Change(name, keys={"rope_parameters": changed})


def without_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.data.zero_()


def without_padding_row(model):
    model.get_input_embeddings().padding_idx = None


PADDING_CHANGE = Change("padding row has a gradient", patch=without_padding_row, of="gradients")


def gpt2_cases():
    epsilon = Change("epsilon of another family", keys={"layer_norm_epsilon": 1e-5})
    biases = Change("no biases", patch=without_biases)
    yield Case(
        "gpt2",
        "gpt2",
        GPT2,
        changes=(epsilon, biases),
        masked_targets=True,
        unsettled=KEY_BIAS,
    )
    yield Case(
        "gpt2_untied",
        "gpt2",
        {**GPT2, "n_inner": 40, "tie_word_embeddings": False},
        changes=(Change("tied", keys={"tie_word_embeddings": True}),),
        unsettled=KEY_BIAS,
    )
    yield Case(
        "gpt2_absent",
        "gpt2",
        {**GPT2, "n_inner": None, "layer_norm_epsilon": 1e-5},
        without=("n_inner", "layer_norm_epsilon", "activation_function", "tie_word_embeddings"),
        changes=(
            Change("epsilon of another class", keys={"layer_norm_epsilon": 1e-6}),
            Change("another activation", keys={"activation_function": "relu"}),
        ),
        embedding_deviation=TINY_EMBEDDING,
        matrix_deviation=1.3,
        stores_after=False,
    )


def llama_cases():
    yield Case(
        "llama",
        "llama",
        {**SMALL, "pretraining_tp": 1, **rope("default")},
        changes=(
            Change("epsilon of another family", keys={"rms_norm_eps": 1e-5}),
            rope_change("theta", rope("default"), rope_theta=10000.0),
            Change("another activation", keys={"hidden_act": "gelu"}),
        ),
        ignored=(
            Change("partial rotary", keys={"partial_rotary_factor": 0.5}),
            Change("layer types", keys={"layer_types": ["sliding_attention"] * 2}),
            Change("window", keys={"sliding_window": 4}),
        ),
        masked_targets=True,
    )
    yield Case(
        "llama_absent",
        "llama",
        {**SMALL, "num_key_value_heads": 4, "rms_norm_eps": 1e-6},
        without=(
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "rope_parameters",
            "tie_word_embeddings",
            "attention_bias",
            "mlp_bias",
            "hidden_act",
        ),
        changes=(
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),
            Change("theta", keys={"rope_theta": 2000000.0}),
            Change("tied", keys={"tie_word_embeddings": True}),
        ),
        embedding_deviation=TINY_EMBEDDING,
    )
    yield Case(
        "llama_tied",
        "llama",
        {**SMALL, "tie_word_embeddings": True},
        changes=(Change("untied", keys={"tie_word_embeddings": False}),),
        masked_targets=True,
    )
    yield Case(
        "llama_biases",
        "llama",
        {**SMALL, "attention_bias": True, "mlp_bias": True},
        changes=(Change("no biases", patch=without_biases),),
    )
    yield Case("llama_head_dim", "llama", {**SMALL, "head_dim": 12})
    for tied in (False, True):
        yield Case(
            "llama_padding_tied" if tied else "llama_padding",
            "llama",
            {**SMALL, "pad_token_id": 3, "tie_word_embeddings": tied},
            padding_in_batch=True,
            changes=(PADDING_CHANGE,),
        )


def scaled_rope_cases():
    linear = rope("linear", factor=3.0)
    yield Case(
        "llama_rope_linear",
        "llama",
        {**SMALL, **linear},
        changes=(rope_change("not scaled", linear, rope_type="default"),),
    )
    yield Case(
        "llama_rope_older_form",
        "llama",
        SMALL,
        without=("rope_parameters",),
        file_keys={"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
        changes=(
            Change("not scaled", keys={"rope_scaling": None}),
            Change("theta", without=("rope_theta",)),
        ),
    )
    dynamic = rope("dynamic", factor=3.0)
    yield Case(
        "llama_rope_dynamic",
        "llama",
        {**SMALL, "max_position_embeddings": 10, **dynamic},
        changes=(
            rope_change("not scaled", dynamic, rope_type="default"),
            rope_change("factor", dynamic, factor=1.0),
        ),
    )
    llama3 = rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=48,
    )
    yield Case(
        "llama_rope_llama3",
        "llama",
        {**SMALL, "max_position_embeddings": 384, **llama3},
        changes=(
            rope_change("not scaled", llama3, rope_type="default"),
            rope_change("linear", llama3, rope_type="linear"),
            rope_change("low_freq_factor", llama3, low_freq_factor=3.0),
            rope_change("high_freq_factor", llama3, high_freq_factor=9.0),
            rope_change("original positions", llama3, original_max_position_embeddings=8192),
        ),
    )


def yarn_cases():
    plain = rope("yarn", factor=4.0, original_max_position_embeddings=16)
    yield Case(
        "llama_rope_yarn",
        "llama",
        {**SMALL, **plain},
        changes=(
            rope_change("no attention factor", plain, attention_factor=1.0),
            rope_change("linear", plain, rope_type="linear"),
            rope_change("original positions", plain, original_max_position_embeddings=64),
        ),
        ignored=(
            rope_change("mscale alone", plain, mscale=0.6),
            rope_change("beta_fast 0", plain, beta_fast=0),
        ),
    )
    full = rope(
        "yarn",
        factor=4.0,
        original_max_position_embeddings=48,
        beta_fast=6.0,
        beta_slow=0.5,
        mscale=2.5,
        mscale_all_dim=0.4,
        truncate=False,
    )
    yield Case(
        "llama_rope_yarn_parameters",
        "llama",
        {**SMALL, "max_position_embeddings": 192, **full},
        changes=(
            rope_change("truncated", full, truncate=True),
            rope_change("beta_fast", full, beta_fast=...),
            rope_change("beta_slow", full, beta_slow=...),
            rope_change("mscale", full, mscale=1.0),
            rope_change("mscale_all_dim", full, mscale_all_dim=1.0),
            rope_change("neither mscale", full, mscale=..., mscale_all_dim=...),
        ),
    )
    given = rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=0.8, mscale=1.5,
        mscale_all_dim=0.4,
    )
    yield Case(
        "llama_rope_yarn_attention_factor",
        "llama",
        {**SMALL, **given},
        changes=(rope_change("attention factor", given, attention_factor=...),),
    )
    inner = rope("yarn", factor=4.0, original_max_position_embeddings=64)
    yield Case(
        "llama_rope_yarn_outer_positions",
        "llama",
        {**SMALL, **inner},
        file_keys={"original_max_position_embeddings": 16},
        changes=(
            Change("the inner positions", without=("original_max_position_embeddings",)),
        ),
    )


def longrope_cases():
    lists = {"short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR}
    for length, positions in (("short", 24), ("long", 12)):
        longrope = rope("longrope", original_max_position_embeddings=positions, **lists)
        other = LONG_FACTOR if length == "short" else SHORT_FACTOR
        yield Case(
            f"llama_rope_longrope_{length}",
            "llama",
            {**SMALL, **longrope},
            changes=(
                rope_change("the other list", longrope, **{f"{length}_factor": other}),
                rope_change("no attention factor", longrope, attention_factor=1.0),
                rope_change("a factor", longrope, factor=1.5),
            ),
        )
    given = rope(
        "longrope", original_max_position_embeddings=12, factor=2.0, attention_factor=0.7, **lists
    )
    yield Case(
        "llama_rope_longrope_attention_factor",
        "llama",
        {**SMALL, **given},
        changes=(rope_change("attention factor", given, attention_factor=...),),
        ignored=(rope_change("factor", given, factor=4.0),),
    )


def cases():
    yield from gpt2_cases()
    yield from llama_cases()
    yield from scaled_rope_cases()
    yield from yarn_cases()
    yield from longrope_cases()
