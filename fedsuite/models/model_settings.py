"""The keys of an experiment's networks, whichever these are."""

from typing import Literal

from fedsuite.core.keys import Unless, With
from fedsuite.core.settings import Settings, key
from fedsuite.models import MODELS


class ModelSettings(Settings):
    """Which networks clients train, and what is put in place of their weights."""

    model: str = key(default="mlp", help="network that clients train", choices=MODELS)
    client_models: str = key(
        default="",
        help="comma-separated networks that clients are given, each NAME or "
        "NAME:key=value:...; empty gives all of them model",
    )
    client_model_assignment: Literal["random", "round-robin", "listed"] = key(
        default="random",
        help="which client gets which entry of client-models: drawn for each, in turns, or "
        "one entry listed for each",
        needs=(Unless("client-models", ""),),
    )
    client_initialisation: Literal["shared", "own"] = key(
        default="shared",
        help="whether clients with the same network start alike, or each with weights of "
        "its own",
    )
    decomposition: bool = key(
        default=False,
        help="factor the convolutions into filter atoms and coefficients",
    )
    fedpara: bool = key(
        default=False,
        help="give the model's layers FedPara's low-rank factors in place of weights",
    )
    fedpara_gamma: float = key(
        default=0.1,
        help="FedPara's rank: 0 is the least that allows full rank, 1 as large as dense",
        minimum=0.0,
        maximum=1.0,
        needs=(With("fedpara", True),),
    )
    fedpara_personal: bool = key(
        default=False,
        help="layers of pFedPara, W1 * (W2 + 1); false is FedPara's W1 * W2",
        needs=(With("fedpara", True),),
    )
    travels: str = key(
        default="all",
        help="arrays that leave a client: all, trainable ones alone, or comma-separated "
        "names in which * is any text; the rest is not trained and stays where it is",
    )
    lora_rank: int = key(
        default=0,
        help="rank of LoRA's adapters of all linear layers but the head, whose own weights "
        "and all others are then frozen; 0 has no adapters",
        minimum=0,
    )
    lora_alpha: float = key(
        default=16.0,
        help="factor on what LoRA's adapters add, over the rank",
        above=0.0,
        needs=(Unless("lora-rank", 0),),
    )
    lora_average: Literal["factors", "products"] = key(
        default="factors",
        help="average A and B of the adapters, or their products: exact, as FLoRA's stack, "
        "up to lora-rank, and clients may have smaller ranks by client-settings",
        needs=(Unless("lora-rank", 0),),
    )


class DecompositionSettings(Settings):
    """How convolutions are factored, where ``decomposition`` is true."""

    atoms: int = key(default=9, help="filter atoms of each factored convolution", minimum=1)
    atoms_initialisation: Literal["keep", "kaiming-both", "match-dense"] = key(
        default="kaiming-both",
        help="how factors start: keep is the nearest to the dense filters, others are "
        "drawn",
    )
    decompose_stem: bool = key(default=False, help="factor a 7 x 7 first convolution too")
    decompose_1x1: bool = key(default=False, help="factor 1 x 1 convolutions too")
