"""Cases of the families that are llama with changes."""

import torch

from golden_case import Case, Change
from llama_cases import (
    LONG_FACTOR,
    PADDING_CHANGE,
    SHORT_FACTOR,
    SMALL,
    TINY_EMBEDDING,
    rope,
    rope_change,
    without_biases,
)

WINDOW = 5
TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
THREE_LAYERS = {"num_hidden_layers": 3, "intermediate_size": 16}


def without_head_norms(model):
    for layer in model.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()


def no_window(**keys):
    return Change("no window", keys=keys or {"sliding_window": None})


def one_more(name="a wider window"):
    return Change(name, keys={"sliding_window": WINDOW + 1})


NO_HEAD_NORMS = Change("no q/k norms", patch=without_head_norms)
NO_BIASES = Change("no biases", patch=without_biases)


def mistral_cases():
    yield Case(
        "mistral",
        "mistral",
        {**SMALL, "sliding_window": WINDOW},
        changes=(no_window(), one_more()),
        ignored=(Change("biases", keys={"attention_bias": True}),),
        masked_targets=True,
    )
    yield Case(
        "mistral_null",
        "mistral",
        {**SMALL, "sliding_window": None, "head_dim": 12},
        changes=(Change("a window", keys={"sliding_window": WINDOW}),),
    )
    yield Case(
        "mistral_absent",
        "mistral",
        {**SMALL, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8,
         "intermediate_size": 16, "rms_norm_eps": 1e-6},
        without=("num_key_value_heads", "sliding_window", "rms_norm_eps", "rope_parameters",
                 "tie_word_embeddings", "hidden_act"),
        changes=(Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),),
        embedding_deviation=TINY_EMBEDDING,
        stores_after=False,
    )


def qwen2_cases():
    yield Case(
        "qwen2",
        "qwen2",
        SMALL,
        without=("layer_types",),
        file_keys={"sliding_window": WINDOW, "max_window_layers": 0, "use_sliding_window": False},
        changes=(
            NO_BIASES,
            Change("the window counts", keys={"use_sliding_window": True}),
        ),
        ignored=(Change("attention_bias", keys={"attention_bias": False}),),
        masked_targets=True,
    )
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    yield Case(
        "qwen2_windows",
        "qwen2",
        {**SMALL, **THREE_LAYERS, **windows, **TIED},
        without=("layer_types",),
        changes=(
            no_window(use_sliding_window=False),
            one_more(),
            Change("window in all layers", keys={"max_window_layers": 0}),
            Change("window in the first layers", keys={
                "layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
        ),
    )
    layers = ["sliding_attention", "full_attention"]
    yield Case(
        "qwen2_layer_types",
        "qwen2",
        {**SMALL, **windows, "layer_types": layers},
        changes=(Change("max_window_layers decides", without=("layer_types",)),),
    )
    yield Case(
        "qwen2_absent",
        "qwen2",
        {**SMALL, "rms_norm_eps": 1e-6, "pad_token_id": 3},
        without=("layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
                 "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "hidden_act"),
        changes=(
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),
            Change("theta", keys={"rope_theta": 1000000.0}),
            PADDING_CHANGE,
        ),
        embedding_deviation=TINY_EMBEDDING,
        padding_in_batch=True,
    )


def qwen3_cases():
    yield Case(
        "qwen3",
        "qwen3",
        {**SMALL, "head_dim": 12, **rope("default")},
        changes=(
            NO_HEAD_NORMS,
            rope_change("theta", rope("default"), rope_theta=1000000.0),
        ),
        masked_targets=True,
    )
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    yield Case(
        "qwen3_windows",
        "qwen3",
        {**SMALL, "head_dim": 8, **windows, **TIED, "pad_token_id": 3},
        without=("layer_types",),
        changes=(
            no_window(use_sliding_window=False),
            Change("window in all layers", keys={"max_window_layers": 0}),
            PADDING_CHANGE,
        ),
        padding_in_batch=True,
    )
    yield Case(
        "qwen3_biases",
        "qwen3",
        {**SMALL, "head_dim": 8, "attention_bias": True},
        changes=(NO_BIASES, NO_HEAD_NORMS),
    )
    yarn = rope("yarn", factor=4.0, original_max_position_embeddings=16)
    yield Case(
        "qwen3_rope_yarn",
        "qwen3",
        {**SMALL, "head_dim": 8, **yarn},
        changes=(rope_change("not scaled", yarn, rope_type="default"),),
    )


GEMMA = {**SMALL, "head_dim": 8, "query_pre_attn_scalar": 20, "sliding_window": WINDOW}
NO_EMBEDDING_SCALE = Change(
    "no embedding scale", patch=lambda model: model.model.embed_tokens.embed_scale.fill_(1.0)
)


def gemma2_cases():
    caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}
    yield Case(
        "gemma2",
        "gemma2",
        {**GEMMA, **caps},
        query_gain=2.0,
        padding_in_batch=True,
        masked_targets=True,
        changes=(
            Change("no cap of scores", keys={"attn_logit_softcapping": None}),
            Change("no cap of logits", keys={"final_logit_softcapping": None}),
            Change("caps of the class", without=tuple(caps)),
            Change("scale of the head width", keys={"query_pre_attn_scalar": 8}),
            Change("all layers full", keys={"layer_types": ["full_attention"] * 2}),
            Change("all layers sliding", keys={"layer_types": ["sliding_attention"] * 2}),
            one_more(),
            NO_EMBEDDING_SCALE,
            PADDING_CHANGE,
        ),
        ignored=(
            Change("bidirectional", keys={"use_bidirectional_attention": True}),
            Change("hidden_act", keys={"hidden_act": "silu"}),
        ),
    )
    yield Case(
        "gemma2_null",
        "gemma2",
        {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None, **UNTIED,
         "layer_types": ["full_attention", "sliding_attention"]},
        query_gain=3.0,
        head_gain=12.0,
        changes=(
            Change("caps of the class", without=("attn_logit_softcapping",
                                                 "final_logit_softcapping")),
            Change("layers of the class", without=("layer_types",)),
        ),
    )
    yield Case(
        "gemma2_absent",
        "gemma2",
        {**GEMMA, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256},
        without=("num_key_value_heads", "attn_logit_softcapping", "final_logit_softcapping",
                 "query_pre_attn_scalar", "layer_types", "rms_norm_eps", "rope_parameters",
                 "tie_word_embeddings", "hidden_activation", "pad_token_id", "attention_bias"),
        query_gain=18.0,
        embedding_deviation=3.0,
        padding_in_batch=True,
        changes=(
            Change("no cap of scores", keys={"attn_logit_softcapping": None}),
            Change("no cap of logits", keys={"final_logit_softcapping": None}),
            Change("scale of the head width", keys={"query_pre_attn_scalar": 8}),
            Change("another activation", keys={"hidden_activation": "silu"}),
            PADDING_CHANGE,
        ),
    )
    yield Case(
        "gemma2_biases",
        "gemma2",
        {**GEMMA, "attention_bias": True},
        changes=(NO_BIASES,),
    )


def gemma3_cases():
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    }
    swapped = {"sliding_attention": ropes["full_attention"],
               "full_attention": ropes["sliding_attention"]}
    unscaled = {**ropes, "full_attention": {"rope_type": "default", "rope_theta": 5000.0}}
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    yield Case(
        "gemma3_text",
        "gemma3_text",
        {**GEMMA, **THREE_LAYERS, "layer_types": layers, "rope_parameters": ropes},
        padding_in_batch=True,
        masked_targets=True,
        changes=(
            NO_HEAD_NORMS,
            NO_EMBEDDING_SCALE,
            Change("one rope of full layers", keys={"rope_parameters": {
                **ropes, "sliding_attention": ropes["full_attention"]}}),
            Change("one rope of sliding layers", keys={"rope_parameters": {
                **ropes, "full_attention": ropes["sliding_attention"]}}),
            Change("ropes swapped", keys={"rope_parameters": swapped}),
            Change("not scaled", keys={"rope_parameters": unscaled}),
            Change("all layers sliding", without=("layer_types",)),
            Change("scale of the head width", keys={"query_pre_attn_scalar": 8}),
            one_more(),
            PADDING_CHANGE,
        ),
        ignored=(Change("cap of scores", keys={"attn_logit_softcapping": 1.0}),),
    )
    older = {"rope_theta": 5000.0, "rope_local_base_freq": 100.0, "sliding_window_pattern": 2,
             "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    yield Case(
        "gemma3_older_form",
        "gemma3_text",
        {**GEMMA, **UNTIED},
        without=("layer_types", "rope_parameters"),
        file_keys=older,
        changes=(
            Change("pattern of the class", without=("sliding_window_pattern",)),
            Change("theta of full layers", without=("rope_theta",)),
            Change("theta of sliding layers", without=("rope_local_base_freq",)),
            Change("not scaled", without=("rope_scaling",)),
        ),
        ignored=(Change("_sliding_window_pattern", keys={"_sliding_window_pattern": 1}),),
    )
    yield Case(
        "gemma3_final_cap",
        "gemma3_text",
        {**GEMMA, "final_logit_softcapping": 4.0, "attention_bias": True},
        changes=(
            Change("no cap of logits", keys={"final_logit_softcapping": None}),
            NO_BIASES,
        ),
    )
    yield Case(
        "gemma3_absent",
        "gemma3_text",
        {**GEMMA, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
         "layer_types": ["sliding_attention", "full_attention"]},
        without=("num_key_value_heads", "final_logit_softcapping", "query_pre_attn_scalar",
                 "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "hidden_activation",
                 "pad_token_id"),
        query_gain=3.0,
        embedding_deviation=TINY_EMBEDDING / 5,
        padding_in_batch=True,
        changes=(
            Change("theta of full layers", keys={"rope_theta": 10000.0}),
            Change("theta of sliding layers", keys={"rope_local_base_freq": 1000000.0}),
            Change("scale of the head width", keys={"query_pre_attn_scalar": 8}),
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),
            Change("all layers sliding", without=("layer_types",)),
            PADDING_CHANGE,
        ),
        ignored=(Change("flat rope", keys={
            "rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50.0}}),),
    )


PHI3 = {**SMALL, "pad_token_id": 3}


def swap_fused(model):
    """Takes gate and up, and keys and values, for each other."""
    for layer in model.model.layers:
        fused = layer.mlp.gate_up_proj.weight.data
        fused.copy_(fused.roll(fused.shape[0] // 2, 0))


def phi3_longrope(name, kind, inner, outer, **changes_of):
    scaling = {"type": kind, "short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR, **inner}
    long = outer < 16
    other = {"long_factor": SHORT_FACTOR} if long else {"short_factor": LONG_FACTOR}
    return Case(
        name,
        "phi3",
        PHI3,
        without=("rope_parameters",),
        file_keys={"rope_theta": 1000.0, "rope_scaling": scaling,
                   "original_max_position_embeddings": outer},
        changes=(
            Change("the other list", keys={"rope_scaling": {**scaling, **other}}),
            Change("no attention factor", keys={
                "rope_scaling": {**scaling, "attention_factor": 1.0}}),
            Change("not scaled", without=("rope_scaling",)),
        ),
        **changes_of,
    )


def phi3_cases():
    yield Case(
        "phi3",
        "phi3",
        PHI3,
        padding_in_batch=True,
        masked_targets=True,
        changes=(Change("gate and up swapped", patch=swap_fused), PADDING_CHANGE),
        ignored=(Change("attention_bias", keys={"attention_bias": True}),),
    )
    yield Case(
        "phi3_window",
        "phi3",
        {**PHI3, "sliding_window": WINDOW, **TIED},
        changes=(no_window(), one_more()),
    )
    yield Case(
        "phi3_partial_rotary",
        "phi3",
        PHI3,
        without=("rope_parameters",),
        file_keys={"rope_theta": 1000.0, "partial_rotary_factor": 0.75},
        changes=(Change("whole heads", without=("partial_rotary_factor",)),),
    )
    yield phi3_longrope("phi3_longrope_short", "longrope", {}, 24)
    yield phi3_longrope("phi3_longrope_long", "longrope", {}, 12)
    yield phi3_longrope("phi3_su", "su", {"original_max_position_embeddings": 48}, 12)
    yield phi3_longrope("phi3_yarn", "yarn", {}, 12)
    partial = rope("longrope", short_factor=SHORT_FACTOR[:2], long_factor=LONG_FACTOR[:2],
                   partial_rotary_factor=0.5)
    yield Case(
        "phi3_longrope_partial",
        "phi3",
        {**PHI3, "original_max_position_embeddings": 12, **partial},
        changes=(rope_change("no attention factor", partial, attention_factor=1.0),),
    )
    yield Case(
        "phi3_absent",
        "phi3",
        {**PHI3, "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
        without=("num_key_value_heads", "rms_norm_eps", "rope_parameters", "tie_word_embeddings",
                 "hidden_act", "sliding_window", "original_max_position_embeddings"),
        changes=(Change("epsilon of another class", keys={"rms_norm_eps": 1e-6}),),
        embedding_deviation=TINY_EMBEDDING,
    )


def norms_of_single_heads(model):
    """Gives q and k the norms that qwen3 has: of each head by itself."""
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.forward = lambda x, norm=norm: head_norm(norm, x)


def head_norm(norm, x):
    heads = x.view(*x.shape[:-1], -1, 8)
    scaled = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return norm.weight * scaled.view(x.shape)


def olmo2_cases():
    single = Change("norms of single heads", patch=norms_of_single_heads)
    yield Case(
        "olmo2",
        "olmo2",
        {**SMALL, "pad_token_id": 1, **rope("default")},
        padding_in_batch=True,
        masked_targets=True,
        changes=(single, NO_HEAD_NORMS, PADDING_CHANGE,
                 rope_change("theta", rope("default"), rope_theta=500000.0)),
    )
    yield Case(
        "olmo2_absent",
        "olmo2",
        {**SMALL, "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
        without=("num_key_value_heads", "rms_norm_eps", "rope_parameters", "tie_word_embeddings",
                 "hidden_act", "pad_token_id", "attention_bias"),
        padding_in_batch=True,
        changes=(
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-6}),
            PADDING_CHANGE,
        ),
        embedding_deviation=TINY_EMBEDDING,
    )
    yield Case(
        "olmo2_biases",
        "olmo2",
        {**SMALL, "attention_bias": True, **TIED},
        changes=(NO_BIASES, single),
    )


SMOLLM3 = {**SMALL, "pad_token_id": 3}


def smollm3_cases():
    yield Case(
        "smollm3",
        "smollm3",
        {**SMOLLM3, **THREE_LAYERS, "no_rope_layers": [1, 0, 1]},
        padding_in_batch=True,
        masked_targets=True,
        changes=(
            Change("rope everywhere", keys={"no_rope_layers": [1, 1, 1]}),
            Change("read as its name says", keys={"no_rope_layers": [0, 1, 0]}),
            PADDING_CHANGE,
        ),
    )
    yield Case(
        "smollm3_interval",
        "smollm3",
        {**SMOLLM3, "no_rope_layer_interval": 2, **UNTIED},
        without=("no_rope_layers", "layer_types"),
        changes=(Change("interval of the class", without=("no_rope_layer_interval",)),),
    )
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "no_rope_layers": [1, 0]}
    yield Case(
        "smollm3_window",
        "smollm3",
        {**SMOLLM3, **windows},
        without=("layer_types",),
        changes=(
            no_window(use_sliding_window=False),
            Change("window in all layers", keys={"layer_types": ["sliding_attention"] * 2}),
            Change("window in layers with rope", keys={
                "layer_types": ["sliding_attention", "full_attention"]}),
            one_more(),
        ),
    )
    yield Case(
        "smollm3_layer_types",
        "smollm3",
        {**SMOLLM3, **windows, "layer_types": ["sliding_attention", "full_attention"]},
        changes=(Change("layers of the class", without=("layer_types",)),),
        ignored=(Change("use_sliding_window", keys={"use_sliding_window": False}),),
    )
    yield Case(
        "smollm3_biases",
        "smollm3",
        {**SMOLLM3, "attention_bias": True, "mlp_bias": True, "no_rope_layers": [0, 1],
         **rope("default")},
        unsettled=("layers.0.self_attn.k_proj.bias",),
        changes=(NO_BIASES,),
    )
    yield Case(
        "smollm3_absent",
        "smollm3",
        {**SMOLLM3, "num_key_value_heads": 4, "num_hidden_layers": 4, "intermediate_size": 12,
         "rms_norm_eps": 1e-6},
        without=("num_key_value_heads", "no_rope_layers", "no_rope_layer_interval", "layer_types",
                 "sliding_window", "use_sliding_window", "rms_norm_eps", "rope_parameters",
                 "tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias"),
        changes=(
            Change("rope everywhere", keys={"no_rope_layers": [1, 1, 1, 1]}),
            Change("theta of other classes", keys={"rope_theta": 10000.0}),
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),
        ),
        embedding_deviation=TINY_EMBEDDING,
        stores_after=False,
    )


def granite_cases():
    multipliers = {"embedding_multiplier": 6.0, "attention_multiplier": 0.09,
                   "residual_multiplier": 0.3, "logits_scaling": 5.0}
    yield Case(
        "granite",
        "granite",
        {**SMALL, **multipliers, **TIED},
        changes=tuple(Change(key, without=(key,)) for key in multipliers),
        masked_targets=True,
    )
    yield Case(
        "granite_absent",
        "granite",
        {**SMALL, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "pad_token_id": 3},
        without=("num_key_value_heads", "rms_norm_eps", "rope_parameters", "tie_word_embeddings",
                 "hidden_act", "attention_bias", "mlp_bias", *multipliers),
        changes=(
            Change("scale of the head width", keys={"attention_multiplier": 8**-0.5}),
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),
            PADDING_CHANGE,
        ),
        embedding_deviation=TINY_EMBEDDING,
        padding_in_batch=True,
    )
    yield Case(
        "granite_biases",
        "granite",
        {**SMALL, **multipliers, "attention_bias": True, "mlp_bias": True},
        changes=(NO_BIASES,),
    )


# Every expert has 768 parameters.
EXPERTS = {**SMALL, "num_local_experts": 5, "num_experts_per_tok": 2}


def expert_layers(model):
    layers = [getattr(layer, "mlp", None) or layer.block_sparse_moe for layer in model.model.layers]
    return [layer for layer in layers if hasattr(layer, "experts")]


def router_of(layer):
    return layer.gate if hasattr(layer, "gate") else layer.router


def with_gates_and_ups_exchanged(model):
    for layer in expert_layers(model):
        gate, up = layer.experts.gate_up_proj.chunk(2, dim=1)
        layer.experts.gate_up_proj.copy_(torch.cat([up, gate], dim=1))


def with_next_experts(model):
    for layer in expert_layers(model):
        for name in ("gate_up_proj", "down_proj"):
            matrices = getattr(layer.experts, name)
            matrices.copy_(matrices.roll(1, dims=0))


def with_equal_weights(model):
    """Gives the chosen experts of a token the same weight."""
    for layer in expert_layers(model):
        choose = router_of(layer).forward

        def forward(hidden, choose=choose):
            logits, weights, indices = choose(hidden)
            return logits, torch.full_like(weights, 1 / weights.shape[-1]), indices

        router_of(layer).forward = forward


def without_shared_experts(model):
    for layer in expert_layers(model):
        shared = layer.shared_expert if hasattr(layer, "shared_expert") else layer.shared_experts
        shared.down_proj.weight.zero_()


def with_whole_shared_experts(model):
    """Leaves out the gate of the shared expert."""
    for layer in expert_layers(model):
        layer.shared_expert_gate.forward = lambda hidden: hidden[..., :1] * 0 + 100


def without_choice_bias(model):
    for layer in expert_layers(model):
        layer.gate.e_score_correction_bias.zero_()


def with_biased_weights(model):
    """Makes the weights from the scores with the bias, by which experts are chosen."""
    for layer in expert_layers(model):
        choose, bias = layer.gate.forward, layer.gate.e_score_correction_bias

        def forward(hidden, choose=choose, bias=bias):
            logits, _, indices = choose(hidden)
            weights = (logits.sigmoid() + bias).gather(1, indices)
            return logits, weights / weights.sum(-1, keepdim=True), indices

        layer.gate.forward = forward


EXPERT_CHANGES = (
    Change("one expert of a token", keys={"num_experts_per_tok": 1}),
    Change("gates and ups exchanged", patch=with_gates_and_ups_exchanged),
    Change("experts of other numbers", patch=with_next_experts),
    Change("equal weights", patch=with_equal_weights),
)


# The loss that balances experts changes gradients alone.
BALANCE_CHANGES = (
    Change("no balance loss", keys={"output_router_logits": False}, of="gradients"),
    Change("another coefficient", keys={"router_aux_loss_coef": 0.05}, of="gradients"),
)


def mixtral_cases():
    yield Case(
        "mixtral",
        "mixtral",
        {**EXPERTS, "intermediate_size": 8, **rope("default")},
        changes=EXPERT_CHANGES,
        ignored=(Change("another name", without=("num_local_experts",), keys={"num_experts": 5}),),
        masked_targets=True,
    )
    yield Case(
        "mixtral_window",
        "mixtral",
        {**EXPERTS, "intermediate_size": 8, "num_experts_per_tok": 3, "head_dim": 8,
         "sliding_window": WINDOW, **TIED, "pad_token_id": 3},
        changes=(no_window(), one_more(), *EXPERT_CHANGES[:1], PADDING_CHANGE),
        padding_in_batch=True,
    )
    yield Case(
        "mixtral_absent",
        "mixtral",
        {**EXPERTS, "num_local_experts": 8, "intermediate_size": 8, "num_attention_heads": 8,
         "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
        without=("num_local_experts", "num_experts_per_tok", "num_key_value_heads", "head_dim",
                 "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "hidden_act",
                 "sliding_window", "output_router_logits", "router_jitter_noise"),
        changes=(
            EXPERT_CHANGES[0],
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-6}),
            Change("theta", keys={"rope_theta": 10000.0}),
            Change("a window", keys={"sliding_window": WINDOW}),
        ),
        embedding_deviation=TINY_EMBEDDING,
        stores_after=False,
    )


    for layers in (1, 2):
        yield Case(
            f"mixtral_balance_{layers}",
            "mixtral",
            {**EXPERTS, "intermediate_size": 8, "num_hidden_layers": layers,
             "output_router_logits": True, "router_aux_loss_coef": 0.3},
            changes=BALANCE_CHANGES,
            masked_targets=True,
        )


def olmoe_cases():
    experts = {**EXPERTS, "num_local_experts": 4, "intermediate_size": 8}
    yield Case(
        "olmoe",
        "olmoe",
        {**experts, "norm_topk_prob": True, "pad_token_id": 3, **rope("default")},
        changes=(
            *EXPERT_CHANGES,
            NO_HEAD_NORMS,
            Change("not normalised", keys={"norm_topk_prob": False}),
            PADDING_CHANGE,
        ),
        padding_in_batch=True,
    )
    yield Case(
        "olmoe_absent",
        "olmoe",
        {**experts, "num_attention_heads": 2, "num_key_value_heads": 2, "attention_bias": True,
         "rms_norm_eps": 1e-5, "pad_token_id": 1, **TIED},
        without=("num_key_value_heads", "norm_topk_prob", "rms_norm_eps", "rope_parameters",
                 "hidden_act", "output_router_logits", "pad_token_id"),
        changes=(
            NO_BIASES,
            Change("normalised", keys={"norm_topk_prob": True}),
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-6}),
            Change("theta", keys={"rope_theta": 1000000.0}),
            PADDING_CHANGE,
        ),
        embedding_deviation=TINY_EMBEDDING,
        padding_in_batch=True,
        masked_targets=True,
    )


def qwen3_moe_cases():
    experts = {**EXPERTS, "num_local_experts": 4, "moe_intermediate_size": 8, "head_dim": 8}
    yield Case(
        "qwen3_moe",
        "qwen3_moe",
        {**experts, "norm_topk_prob": True},
        without=("num_local_experts",),
        file_keys={"num_experts": 4},
        changes=(
            *EXPERT_CHANGES,
            NO_HEAD_NORMS,
            Change("not normalised", keys={"norm_topk_prob": False}),
        ),
        ignored=(Change("max_window_layers", keys={"max_window_layers": 1}),),
        masked_targets=True,
    )
    yield Case(
        "qwen3_moe_layers",
        "qwen3_moe",
        {**experts, **THREE_LAYERS, "num_local_experts": 3, "mlp_only_layers": [1],
         "num_attention_heads": 2, "num_key_value_heads": 2, "attention_bias": True},
        without=("norm_topk_prob", "decoder_sparse_step"),
        changes=(
            *EXPERT_CHANGES,
            NO_BIASES,
            Change("normalised", keys={"norm_topk_prob": True}),
            Change("experts in all layers", keys={"mlp_only_layers": []}),
            Change("experts in the middle layer", keys={"mlp_only_layers": [0, 2]}),
        ),
    )
    yield Case(
        "qwen3_moe_sparse_step",
        "qwen3_moe",
        {**experts, "decoder_sparse_step": 2, "num_experts_per_tok": 3, "norm_topk_prob": True,
         "use_sliding_window": True, "sliding_window": WINDOW, **TIED, "pad_token_id": 3},
        changes=(
            no_window(use_sliding_window=False),
            one_more(),
            Change("experts in all layers", keys={"decoder_sparse_step": 1}),
            Change("no experts", keys={"mlp_only_layers": [1]}),
            PADDING_CHANGE,
        ),
        padding_in_batch=True,
    )
    yield Case(
        "qwen3_moe_absent",
        "qwen3_moe",
        {**experts, "rms_norm_eps": 1e-6},
        without=("head_dim", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
                 "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "hidden_act",
                 "use_sliding_window", "sliding_window", "output_router_logits"),
        changes=(
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),
            Change("theta", keys={"rope_theta": 1000000.0}),
            Change("normalised", keys={"norm_topk_prob": True}),
        ),
        embedding_deviation=TINY_EMBEDDING,
    )


    for layers in (1, 2):
        yield Case(
            f"qwen3_moe_balance_{layers}",
            "qwen3_moe",
            {**experts, "num_hidden_layers": layers, "norm_topk_prob": True,
             "output_router_logits": True, "router_aux_loss_coef": 0.3},
            changes=BALANCE_CHANGES,
        )


NO_SHARED = Change("no shared expert", patch=without_shared_experts)


def qwen2_moe_cases():
    experts = {**SMALL, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
               "shared_expert_intermediate_size": 6}
    shared = (NO_SHARED, Change("no gate of the shared expert", patch=with_whole_shared_experts))
    yield Case(
        "qwen2_moe",
        "qwen2_moe",
        {**experts, "norm_topk_prob": True, **rope("default")},
        changes=(
            *EXPERT_CHANGES,
            *shared,
            NO_BIASES,
            Change("not normalised", keys={"norm_topk_prob": False}),
        ),
        masked_targets=True,
    )
    yield Case(
        "qwen2_moe_layers",
        "qwen2_moe",
        {**experts, **THREE_LAYERS, "intermediate_size": 12, "moe_intermediate_size": 4,
         "shared_expert_intermediate_size": 4, "mlp_only_layers": [1], "num_attention_heads": 2,
         "num_key_value_heads": 2, "qkv_bias": False},
        without=("norm_topk_prob", "decoder_sparse_step"),
        changes=(
            *shared,
            Change("biases", keys={"qkv_bias": True}),
            Change("normalised", keys={"norm_topk_prob": True}),
            Change("experts in all layers", keys={"mlp_only_layers": []}),
            Change("experts in the middle layer", keys={"mlp_only_layers": [0, 2]}),
        ),
        stores_after=False,
    )
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
    yield Case(
        "qwen2_moe_windows",
        "qwen2_moe",
        {**experts, **THREE_LAYERS, **windows, "num_experts": 2, "decoder_sparse_step": 2,
         "num_experts_per_tok": 1, **TIED, "pad_token_id": 3},
        without=("layer_types",),
        changes=(
            no_window(use_sliding_window=False),
            one_more(),
            Change("a window in the layers of qwen2", keys={
                "layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
            Change("a window in both even layers", keys={"max_window_layers": 3}),
            Change("a window in both lower layers", keys={
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
            Change("experts in all layers", keys={"decoder_sparse_step": 1}),
            PADDING_CHANGE,
        ),
        padding_in_batch=True,
    )
    yield Case(
        "qwen2_moe_absent",
        "qwen2_moe",
        {**experts, "num_experts": 5, "num_experts_per_tok": 4, "moe_intermediate_size": 4,
         "rms_norm_eps": 1e-6},
        without=("num_experts_per_tok", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
                 "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "hidden_act",
                 "qkv_bias", "use_sliding_window", "sliding_window", "max_window_layers",
                 "layer_types", "output_router_logits"),
        changes=(
            EXPERT_CHANGES[0],
            NO_BIASES,
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),
            Change("theta", keys={"rope_theta": 1000000.0}),
            Change("normalised", keys={"norm_topk_prob": True}),
        ),
        embedding_deviation=TINY_EMBEDDING,
    )


def granitemoe_cases():
    multipliers = {"embedding_multiplier": 6.0, "attention_multiplier": 0.09,
                   "residual_multiplier": 0.3, "logits_scaling": 5.0}
    experts = {**EXPERTS, "num_local_experts": 4, "intermediate_size": 8}
    yield Case(
        "granitemoe",
        "granitemoe",
        {**experts, **multipliers, **TIED},
        changes=(*EXPERT_CHANGES, *(Change(key, without=(key,)) for key in multipliers)),
        masked_targets=True,
    )
    yield Case(
        "granitemoe_biases",
        "granitemoe",
        {**experts, **multipliers, "num_local_experts": 3, "num_experts_per_tok": 3,
         "attention_bias": True, "pad_token_id": 3},
        changes=(NO_BIASES, Change("two experts", keys={"num_experts_per_tok": 2}), PADDING_CHANGE),
        padding_in_batch=True,
    )
    yield Case(
        "granitemoe_absent",
        "granitemoe",
        {**experts, "num_local_experts": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6},
        without=("num_local_experts", "num_experts_per_tok", "num_key_value_heads", "rms_norm_eps",
                 "rope_parameters", "tie_word_embeddings", "hidden_act", "attention_bias",
                 "output_router_logits", *multipliers),
        changes=(
            EXPERT_CHANGES[0],
            Change("scale of the head width", keys={"attention_multiplier": 8**-0.5}),
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-5}),
            Change("theta", keys={"rope_theta": 1000000.0}),
        ),
        embedding_deviation=TINY_EMBEDDING,
        stores_after=False,
    )


def glm4_moe_cases():
    experts = {**SMALL, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
               "intermediate_size": 16}
    no_bias = Change("no bias of the choice", patch=without_choice_bias)
    yield Case(
        "glm4_moe",
        "glm4_moe",
        {**experts, "head_dim": 8, "use_qk_norm": True, "routed_scaling_factor": 1.8},
        changes=(
            *EXPERT_CHANGES,
            NO_HEAD_NORMS,
            NO_SHARED,
            no_bias,
            Change("weights with the bias", patch=with_biased_weights),
            Change("no scale", keys={"routed_scaling_factor": 1.0}),
            Change("not normalised", keys={"norm_topk_prob": False}),
            Change("experts in all layers", keys={"first_k_dense_replace": 0}),
        ),
        ignored=(Change("layers that guess", keys={"num_nextn_predict_layers": 2}),),
        masked_targets=True,
    )
    yield Case(
        "glm4_moe_groups",
        "glm4_moe",
        {**experts, "n_routed_experts": 6, "n_group": 3, "topk_group": 2, "n_shared_experts": 2,
         "num_experts_per_tok": 3, "moe_intermediate_size": 4, "norm_topk_prob": False,
         "first_k_dense_replace": 0, "attention_bias": True, **TIED, "pad_token_id": 3},
        changes=(
            NO_BIASES,
            NO_SHARED,
            no_bias,
            Change("no groups", keys={"n_group": 1, "topk_group": 1}),
            Change("two groups", keys={"n_group": 2, "topk_group": 1}),
            Change("normalised", keys={"norm_topk_prob": True}),
            PADDING_CHANGE,
        ),
        unsettled=("self_attn.k_proj.bias",),  # softmax does not see the part that is not rotated
        padding_in_batch=True,
    )
    yield Case(
        "glm4_moe_absent",
        "glm4_moe",
        {**experts, "n_routed_experts": 9, "num_experts_per_tok": 8, "moe_intermediate_size": 4,
         "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8, "rms_norm_eps": 1e-5},
        without=("num_experts_per_tok", "num_key_value_heads", "rms_norm_eps", "rope_parameters",
                 "tie_word_embeddings", "hidden_act", "attention_bias", "use_qk_norm", "n_group",
                 "topk_group", "n_shared_experts", "norm_topk_prob", "routed_scaling_factor",
                 "first_k_dense_replace", "output_router_logits", "num_nextn_predict_layers",
                 "partial_rotary_factor"),
        changes=(
            EXPERT_CHANGES[0],
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-6}),
            Change("theta", keys={"rope_theta": 1000000.0}),
            Change("all of a head rotated", keys={"partial_rotary_factor": 1.0}),
            Change("not normalised", keys={"norm_topk_prob": False}),
            Change("experts in all layers", keys={"first_k_dense_replace": 0}),
        ),
        embedding_deviation=TINY_EMBEDDING,
        stores_after=False,
    )


def without_sinks(model):
    for layer in model.model.layers:
        layer.self_attn.sinks.fill_(-1e9)


def without_attention_biases(model):
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(layer.self_attn, name).bias.zero_()


def without_expert_biases(model):
    for layer in expert_layers(model):
        layer.experts.gate_up_proj_bias.zero_()
        layer.experts.down_proj_bias.zero_()


def without_router_bias(model):
    for layer in expert_layers(model):
        layer.router.bias.zero_()


def with_gates_beside_ups(model):
    """Has the first half of the columns as gates and the other half as ups."""
    for layer in expert_layers(model):
        for name in ("gate_up_proj", "gate_up_proj_bias"):
            both = getattr(layer.experts, name)
            gates, ups = both.chunk(2, dim=-1)
            both.copy_(torch.stack([gates, ups], dim=-1).flatten(-2))


def with_equal_scores(model):
    for layer in expert_layers(model):
        choose = layer.router.forward

        def forward(hidden, choose=choose):
            logits, scores, indices = choose(hidden)
            return logits, torch.full_like(scores, 1 / scores.shape[-1]), indices

        layer.router.forward = forward


def gpt_oss_cases():
    yarn = rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=3.0,
                beta_slow=0.4, truncate=False)
    small = {**EXPERTS, "num_local_experts": 4, "intermediate_size": 8, "head_dim": 8}
    yield Case(
        "gpt_oss",
        "gpt_oss",
        {**small, **yarn, "sliding_window": WINDOW},
        changes=(
            Change("no sinks", patch=without_sinks),
            Change("no biases of experts", patch=without_expert_biases),
            Change("no bias of the router", patch=without_router_bias),
            Change("no biases of attention", patch=without_attention_biases),
            Change("gates beside ups", patch=with_gates_beside_ups),
            Change("gates that are not clamped", keys={"swiglu_limit": 1000.0}),
            Change("another slope", keys={"swiglu_alpha": 1.0}),
            Change("one expert of a token", keys={"num_experts_per_tok": 1}),
            Change("equal weights", patch=with_equal_scores),
            one_more(),
            Change("windows in other layers",
                   keys={"layer_types": ["full_attention", "sliding_attention"]}),
            rope_change("truncated", yarn, truncate=True),
        ),
        ignored=(
            Change("another activation", keys={"hidden_act": "gelu"}),
            Change("another name", without=("num_local_experts",), keys={"num_experts": 4}),
        ),
        expert_gain=3.5,
        masked_targets=True,
    )
    yield Case(
        "gpt_oss_layers",
        "gpt_oss",
        {**small, **rope("default"), **THREE_LAYERS, "intermediate_size": 8,
         "num_local_experts": 3, "num_attention_heads": 2, "num_key_value_heads": 2,
         "sliding_window": WINDOW, "attention_bias": False, **TIED,
         "pad_token_id": 3,
         "layer_types": ["full_attention", "full_attention", "sliding_attention"]},
        changes=(
            Change("windows in every second layer", without=("layer_types",)),
            Change("no sinks", patch=without_sinks),
            one_more(),
            PADDING_CHANGE,
        ),
        padding_in_batch=True,
    )
    yield Case(
        "gpt_oss_absent",
        "gpt_oss",
        {**small, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 8,
         "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 5,
         "num_experts_per_tok": 4, "rms_norm_eps": 1e-5},
        without=("num_key_value_heads", "head_dim", "num_experts_per_tok", "rms_norm_eps",
                 "rope_parameters", "tie_word_embeddings", "hidden_act", "sliding_window",
                 "layer_types", "attention_bias", "swiglu_alpha", "swiglu_limit",
                 "max_position_embeddings", "output_router_logits"),
        changes=(
            Change("epsilon of another class", keys={"rms_norm_eps": 1e-6}),
            Change("no scaling of positions",
                   keys={"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}),
            Change("theta", keys={"rope_theta": 10000.0}),
            Change("a window", keys={"sliding_window": WINDOW}),
            Change("no biases of attention", patch=without_attention_biases),
        ),
        embedding_deviation=TINY_EMBEDDING,
        stores_after=False,
    )


def cases():
    yield from mistral_cases()
    yield from mixtral_cases()
    yield from qwen2_cases()
    yield from qwen3_cases()
    yield from qwen2_moe_cases()
    yield from qwen3_moe_cases()
    yield from gemma2_cases()
    yield from gemma3_cases()
    yield from phi3_cases()
    yield from olmo2_cases()
    yield from olmoe_cases()
    yield from smollm3_cases()
    yield from granite_cases()
    yield from granitemoe_cases()
    yield from glm4_moe_cases()
    yield from gpt_oss_cases()
