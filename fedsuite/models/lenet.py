"""Networks that papers on federated CIFAR call LeNet.

The filter decomposition paper names "LeNet" without layers. FedDC's LeNet suits the paper's
Table 1 and equals FedEBA+'s ``cnn`` of :mod:`fedsuite.models.cnn`. This module has the
other candidates, from the code that the paper adapted. Parameter counts are for 3 x 32 x 32
images.
"""

from torch import nn

from fedsuite.models.stages import Stage, staged_network


def lenet5(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return LeNet-5: 61,706 parameters on 28 x 28 grey images and 10 classes.

    LeCun et al., Proc. IEEE 1998, in the form in use today (ReLU, max-pooling): 5 x 5
    convolutions of 6, padded by 2, and 16, then 120 and 84 units.
    """
    stages = (Stage(6, padding=2), Stage(16))
    return staged_network("lenet-5", input_shape, num_classes, stages, (120, 84))


def lenet_b(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return FedRep's network for CIFAR-10: 307,842 parameters at 10 classes.

    Collins et al., ICML 2021: two 5 x 5 convolutions of 64, then 120 and 64 units.
    """
    stages = (Stage(64), Stage(64))
    return staged_network("lenet-b", input_shape, num_classes, stages, (120, 64))


def lenet_b100(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return FedRep's network for CIFAR-100: 1,075,044 parameters at 100 classes.

    5 x 5 convolutions of 64 and 128, then 256 and 128 units, with dropout 0.6 before the
    classifier.
    """
    return staged_network(
        "lenet-b100",
        input_shape,
        num_classes,
        (Stage(64), Stage(128)),
        (256, 128),
        dropout=0.6,
    )


def lenet_c(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return FedPAC's network: 107,690 parameters at 10 classes, 119,300 at 100.

    Xu et al., ICLR 2023: convolutions of 16 (5 x 5), 32 (5 x 5, padded by 1) and 64
    (3 x 3, padded by 1), then 128 units; leaky ReLU, of torch's slope 0.01.
    """
    return staged_network(
        "lenet-c",
        input_shape,
        num_classes,
        (Stage(16), Stage(32, padding=1), Stage(64, kernel=3, padding=1)),
        (128,),
        activation=nn.LeakyReLU,
    )


def lenet_m(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return McMahan et al.'s CNN without padding: 878,538 parameters at 10 classes.

    AISTATS 2017: 5 x 5 convolutions of 32 and 64, then 512 units.
    """
    stages = (Stage(32), Stage(64))
    return staged_network("lenet-m", input_shape, num_classes, stages, (512,))
