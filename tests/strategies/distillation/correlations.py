"""Numbers of the specification's example of FCCL and FCCL+, and the two methods."""

from fedsuite.clients.distillation.fccl import FCCLClient
from fedsuite.clients.distillation.fccl_plus import FCCLPlusClient
from fedsuite.strategies.distillation.fccl import FCCL
from fedsuite.strategies.distillation.fccl_plus import FCCLPlus

SLOPE = [
    (0.026801, -1.240660, 0.108095),
    (0.042249, -0.300378, -0.023424),
    (-0.061327, 0.600756, -0.128511),
    (-0.007724, 0.940282, 0.043840),
]

FEATURES = ([(1, 0), (1, 1), (0, 2)], [(1, 1), (0, 1), (1, -1)])

METHODS = {"fccl": (FCCL, FCCLClient), "fccl-plus": (FCCLPlus, FCCLPlusClient)}
