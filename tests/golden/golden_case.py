"""Defines a golden case: a tiny model, and which options must and must not change its results."""

from dataclasses import dataclass, field


@dataclass
class Change:
    """Another reading of a case's files, as an implementation might have it that ignores an option.

    `keys` replaces keys of config.json (None: null), `without` removes some, and `patch` changes
    the model that transformers makes. Either the logits must differ from the case's, or, where `of`
    is "gradients", some gradient must: by `least`, relative to the norm.
    """

    name: str
    keys: dict = field(default_factory=dict)
    without: tuple = ()
    patch: object = None
    of: str = "logits"
    least: float = 1e-2


@dataclass
class Case:
    """A model and what is computed with it.

    `config` are the arguments of the configuration class, whose file transformers writes. Then
    `without` removes keys from the file and `file_keys` sets keys in it, for what transformers
    reads and does not write: absent keys and older forms.
    """

    name: str
    family: str
    config: dict
    without: tuple = ()
    file_keys: dict = field(default_factory=dict)
    changes: tuple = ()  # with each of them the result must differ by far more than rounding
    ignored: tuple = ()  # with each of them the logits must be exactly the same
    # Deviations of the weights, which are normal. Those of matrices are in units of 1 /
    # sqrt(inputs).
    matrix_deviation: float = 0.9
    embedding_deviation: float = 0.7
    head_gain: float = 1.0  # also scales an untied head: larger logits
    query_gain: float = 1.3  # also scales the query and key projections: larger scores
    choice_bias: float = 0.3  # deviation of the bias of the choice of experts
    expert_gain: float = 1.0  # scales the matrices of gpt_oss's experts: larger gates
    padding_in_batch: bool = False  # the id pad_token_id is in every sequence
    masked_targets: bool = False  # some targets are -100
    stores_after: bool = True  # the parameters after the last step are small enough to be kept
    # Ends of the names of parameters whose gradient is zero except for rounding. AdamW makes whole
    # steps of it, so their values after the last step mean nothing and are not kept.
    unsettled: tuple = ()
    draw: int = 0  # which of many random draws: the first that rounding does not amplify much

    def __post_init__(self):
        names = [change.name for change in (*self.changes, *self.ignored)]
        assert len(names) == len(set(names)), f"{self.name}: two changes of one name"
