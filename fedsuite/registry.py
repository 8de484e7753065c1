"""The methods: one line each ties name, strategy, client and paper together."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from fedsuite.errors import ConfigError

if TYPE_CHECKING:
    from fedsuite.clients.base import FederatedClient
    from fedsuite.strategies.base import FederatedStrategy


@dataclass(frozen=True)
class Method:
    """A method of federated learning.

    Parameters
    ----------
    name
        What ``method = "..."`` says in an experiment.
    strategy, client
        ``file.Class`` in ``fedsuite/strategies`` and ``fedsuite/clients``.
    paper
        Where the method comes from.
    """

    name: str
    strategy: str
    client: str
    paper: str

    def load_strategy(self) -> "type[FederatedStrategy]":
        """Import and return the strategy's class."""
        strategy: type[FederatedStrategy] = _load("fedsuite.strategies", self.strategy)
        return strategy

    def load_client(self) -> "type[FederatedClient]":
        """Import and return the client's class."""
        client: type[FederatedClient] = _load("fedsuite.clients", self.client)
        return client


_FEDEBA = "Wang et al., Entropy-driven Fair and Effective FL, arXiv:2301.12407"
_FEDAL = "Han et al., FedAL, arXiv:2311.16584"
_FEDPARA = "Hyeon-Woo et al., ICLR 2022, arXiv:2108.06098"
_FEDPROTO = "Tan et al., AAAI 2022, arXiv:2105.00243"
_MCMAHAN = "McMahan et al., AISTATS 2017, arXiv:1602.05629"

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("fedavg", "fedavg.FedAvg", "fedavg.FedAvgClient", _MCMAHAN),
        Method("fedsgd", "fedsgd.FedSGD", "fedsgd.FedSGDClient", _MCMAHAN),
        Method(
            "fedprox",
            "fedprox.FedProx",
            "fedprox.FedProxClient",
            "Li et al., MLSys 2020, arXiv:1812.06127",
        ),
        Method("standalone", "standalone.Standalone", "standalone.StandaloneClient", "-"),
        Method(
            "fedavg-ft",
            "fedavg_ft.FedAvgFT",
            "fedavg_ft.FedAvgFTClient",
            "Collins et al., NeurIPS 2022, arXiv:2205.13692",
        ),
        Method(
            "scaffold",
            "scaffold.Scaffold",
            "scaffold.ScaffoldClient",
            "Karimireddy et al., ICML 2020, arXiv:1910.06378",
        ),
        Method(
            "feddyn",
            "feddyn.FedDyn",
            "feddyn.FedDynClient",
            "Acar et al., ICLR 2021, arXiv:2111.04263",
        ),
        Method(
            "feddc",
            "feddc.FedDC",
            "feddc.FedDCClient",
            "Gao et al., CVPR 2022, arXiv:2203.11751",
        ),
        Method(
            "ditto",
            "ditto.Ditto",
            "ditto.DittoClient",
            "Li et al., ICML 2021, arXiv:2012.04221",
        ),
        Method("fedeba", "fedeba.FedEBA", "fedeba.FedEBAClient", _FEDEBA),
        Method("fedeba-plus", "fedeba_plus.FedEBAPlus", "fedeba.FedEBAPlusClient", _FEDEBA),
        Method(
            "prac-fedeba-plus", "fedeba_plus.PracFedEBAPlus", "fedeba.FedEBAClient", _FEDEBA
        ),
        Method(
            "qffl",
            "qffl.QFFL",
            "probed.ProbedClient",
            "Li et al., ICLR 2020, arXiv:1905.10497",
        ),
        Method(
            "fedfv",
            "fedfv.FedFV",
            "probed.ProbedClient",
            "Wang et al., IJCAI 2021, arXiv:2104.14937",
        ),
        Method(
            "term",
            "term.TERM",
            "probed.ProbedClient",
            "Li et al., ICLR 2021, arXiv:2007.01162",
        ),
        Method(
            "afl",
            "afl.AFL",
            "probed.ProbedClient",
            "Mohri et al., ICML 2019, arXiv:1902.00146",
        ),
        Method(
            "propfair",
            "propfair.PropFair",
            "propfair.PropFairClient",
            "Zhang et al., TMLR 2023, arXiv:2202.01666",
        ),
        Method(
            "fedmgda-plus",
            "fedmgda_plus.FedMGDAPlus",
            "fedavg.FedAvgClient",
            "Hu et al., IEEE TNSE 2022, arXiv:2006.11489",
        ),
        Method(
            "aaggff",
            "aaggff.AAggFF",
            "probed.ProbedClient",
            "Hahn et al., ICML 2024, arXiv:2405.20821",
        ),
        Method(
            "fedwavg",
            "fedwavg.FedwAvg",
            "fedwavg.FedwAvgClient",
            "Hong et al., Applied Sciences 12(12):5806, 2022 (our reading)",
        ),
        Method(
            "feddisco",
            "feddisco.FedDISCO",
            "feddisco.FedDISCOClient",
            "Ye et al., ICML 2023",
        ),
        Method(
            "fedprox-ft",
            "fedprox_ft.FedProxFT",
            "fedprox_ft.FedProxFTClient",
            "Li et al., MLSys 2020, arXiv:1812.06127, then fine-tuning",
        ),
        Method(
            "fedper",
            "fedper.FedPer",
            "partial.PartialClient",
            "Arivazhagan et al., arXiv:1912.00818",
        ),
        Method(
            "fedrep",
            "fedrep.FedRep",
            "fedrep.FedRepClient",
            "Collins et al., ICML 2021, arXiv:2102.07078",
        ),
        Method(
            "lg-fedavg",
            "lg_fedavg.LGFedAvg",
            "partial.PartialClient",
            "Liang et al., arXiv:2001.01523",
        ),
        Method(
            "fedpac",
            "fedpac.FedPAC",
            "fedpac.FedPACClient",
            "Xu et al., ICLR 2023, arXiv:2306.11867",
        ),
        Method(
            "fedakd",
            "fedakd.FedAKD",
            "fedakd.FedAKDClient",
            "Yu et al., KDD 2025, arXiv:2507.08617",
        ),
        Method(
            "cffl",
            "cffl.CFFL",
            "cffl.CFFLClient",
            "Lyu et al., Federated Learning (LNCS 12500), 2020, arXiv:2008.12161",
        ),
        Method("cgsv", "cgsv.CGSV", "fedavg.FedAvgClient", "Xu et al., NeurIPS 2021"),
        Method(
            "fedave",
            "fedave.FedAVE",
            "fedave.FedAVEClient",
            "Wang et al., Neurocomputing 574:127227, 2024",
        ),
        Method(
            "fedsac",
            "fedsac.FedSAC",
            "fedsac.FedSACClient",
            "Wang et al., KDD 2024, arXiv:2405.18291 (our reading)",
        ),
        Method(
            "fedmd",
            "fedmd.FedMD",
            "fedmd.FedMDClient",
            "Li & Wang, NeurIPS workshop 2019, arXiv:1910.03581",
        ),
        Method("fedmd-lf", "fedmd.FedMDLF", "fedmd.FedMDClient", _FEDAL),
        Method("fedal", "fedal.FedAL", "fedal.FedALClient", _FEDAL),
        Method("fd", "fd.FD", "fd.FDClient", "Jeong et al., 2018, arXiv:1811.11479"),
        Method("fedproto", "fedproto.FedProto", "fedproto.FedProtoClient", _FEDPROTO),
        Method(
            "fedproto-public",
            "fedproto.FedProtoPublic",
            "fedproto.FedProtoPublicClient",
            f"{_FEDPROTO}, as {_FEDAL}",
        ),
        Method("cfd", "cfd.CFD", "cfd.CFDClient", "Sattler et al., arXiv:2012.00632"),
        Method("fccl", "fccl.FCCL", "fccl.FCCLClient", "Huang et al., CVPR 2022"),
        Method(
            "fccl-plus",
            "fccl_plus.FCCLPlus",
            "fccl_plus.FCCLPlusClient",
            "Huang et al., IEEE TPAMI 2024, arXiv:2309.16286",
        ),
        Method(
            "feddf",
            "feddf.FedDF",
            "feddf.FedDFClient",
            "Lin et al., NeurIPS 2020, arXiv:2006.07242",
        ),
        Method("feddf-al", "feddf_al.FedDFAL", "feddf.FedDFClient", _FEDAL),
        Method("fedpara", "fedpara.FedPara", "fedavg.FedAvgClient", _FEDPARA),
        Method("pfedpara", "fedpara.PFedPara", "partial.PartialClient", _FEDPARA),
    )
}


def find_method(name: str) -> Method:
    """Return the method of a name.

    Raises
    ------
    ConfigError
        If there is none, with the nearest.
    """
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown method {name!r}: {hint}known: {', '.join(METHODS)}")
    return METHODS[name]


def _load(package: str, path: str) -> type:
    module, _, name = path.partition(".")
    loaded: type = getattr(import_module(f"{package}.{module}"), name)
    return loaded


_WRAPPERS = {
    "strategies": {"FilterDecomposition": "filter_decomposition"},
    "clients": {"DecomposedClient": "filter_decomposition"},
}
"""What goes around any method, by side: class to file."""


def exported_classes(side: str) -> dict[str, str]:
    """Return class name to module for one side, ``strategies`` or ``clients``."""
    paths = [m.strategy if side == "strategies" else m.client for m in METHODS.values()]
    files = {path.partition(".")[2]: path.partition(".")[0] for path in paths}
    files |= _WRAPPERS[side]
    return {name: f"fedsuite.{side}.{file}" for name, file in files.items()}
