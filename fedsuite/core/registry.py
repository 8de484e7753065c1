"""The registry of methods: name, strategy, client and paper, one line per method."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from fedsuite.core.errors import ConfigError


@dataclass(frozen=True)
class Method:
    """A method of federated learning.

    Parameters
    ----------
    name
        Value of the key ``method`` in an experiment.
    strategy, client
        ``family.file.Class`` in ``fedsuite/strategies`` and ``fedsuite/clients``.
    paper
        Paper of the method.
    """

    name: str
    strategy: str
    client: str
    paper: str


_FEDEBA = "Wang et al., Entropy-driven Fair and Effective FL, arXiv:2301.12407"
_FEDAL = "Han et al., FedAL, arXiv:2311.16584"
_FEDPARA = "Hyeon-Woo et al., ICLR 2022, arXiv:2108.06098"
_FEDPROTO = "Tan et al., AAAI 2022, arXiv:2105.00243"
_MCMAHAN = "McMahan et al., AISTATS 2017, arXiv:1602.05629"

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(
            "fedavg", "averaging.fedavg.FedAvg", "averaging.fedavg.FedAvgClient", _MCMAHAN
        ),
        Method(
            "fedsgd", "averaging.fedsgd.FedSGD", "averaging.fedsgd.FedSGDClient", _MCMAHAN
        ),
        Method(
            "fedprox",
            "drift.fedprox.FedProx",
            "drift.fedprox.FedProxClient",
            "Li et al., MLSys 2020, arXiv:1812.06127",
        ),
        Method(
            "standalone",
            "averaging.standalone.Standalone",
            "averaging.standalone.StandaloneClient",
            "-",
        ),
        Method(
            "fedavg-ft",
            "personal.fedavg_ft.FedAvgFT",
            "personal.fedavg_ft.FedAvgFTClient",
            "Collins et al., NeurIPS 2022, arXiv:2205.13692",
        ),
        Method(
            "fednova",
            "drift.fednova.FedNova",
            "averaging.fedavg.FedAvgClient",
            "Wang et al., NeurIPS 2020, arXiv:2007.07481",
        ),
        Method(
            "fedntd",
            "drift.fedntd.FedNTD",
            "drift.fedntd.FedNTDClient",
            "Lee et al., NeurIPS 2022, arXiv:2106.03097",
        ),
        Method(
            "scaffold",
            "drift.scaffold.Scaffold",
            "drift.scaffold.ScaffoldClient",
            "Karimireddy et al., ICML 2020, arXiv:1910.06378",
        ),
        Method(
            "feddyn",
            "drift.feddyn.FedDyn",
            "drift.feddyn.FedDynClient",
            "Acar et al., ICLR 2021, arXiv:2111.04263",
        ),
        Method(
            "feddc",
            "drift.feddc.FedDC",
            "drift.feddc.FedDCClient",
            "Gao et al., CVPR 2022, arXiv:2203.11751",
        ),
        Method(
            "ditto",
            "personal.ditto.Ditto",
            "personal.ditto.DittoClient",
            "Li et al., ICML 2021, arXiv:2012.04221",
        ),
        Method("fedeba", "fair.fedeba.FedEBA", "fair.fedeba.FedEBAClient", _FEDEBA),
        Method(
            "fedeba-plus",
            "fair.fedeba_plus.FedEBAPlus",
            "fair.fedeba.FedEBAPlusClient",
            _FEDEBA,
        ),
        Method(
            "prac-fedeba-plus",
            "fair.fedeba_plus.PracFedEBAPlus",
            "fair.fedeba.FedEBAClient",
            _FEDEBA,
        ),
        Method(
            "qffl",
            "fair.qffl.QFFL",
            "fair.probed.ProbedClient",
            "Li et al., ICLR 2020, arXiv:1905.10497",
        ),
        Method(
            "fedfv",
            "fair.fedfv.FedFV",
            "fair.probed.ProbedClient",
            "Wang et al., IJCAI 2021, arXiv:2104.14937",
        ),
        Method(
            "term",
            "fair.term.TERM",
            "fair.probed.ProbedClient",
            "Li et al., ICLR 2021, arXiv:2007.01162",
        ),
        Method(
            "afl",
            "fair.afl.AFL",
            "fair.probed.ProbedClient",
            "Mohri et al., ICML 2019, arXiv:1902.00146",
        ),
        Method(
            "propfair",
            "fair.propfair.PropFair",
            "fair.propfair.PropFairClient",
            "Zhang et al., TMLR 2023, arXiv:2202.01666",
        ),
        Method(
            "fedmgda-plus",
            "fair.fedmgda_plus.FedMGDAPlus",
            "averaging.fedavg.FedAvgClient",
            "Hu et al., IEEE TNSE 2022, arXiv:2006.11489",
        ),
        Method(
            "aaggff",
            "fair.aaggff.AAggFF",
            "fair.probed.ProbedClient",
            "Hahn et al., ICML 2024, arXiv:2405.20821",
        ),
        Method(
            "fedwavg",
            "averaging.fedwavg.FedwAvg",
            "averaging.fedwavg.FedwAvgClient",
            "Hong et al., Applied Sciences 12(12):5806, 2022 (our reading)",
        ),
        Method(
            "feddisco",
            "averaging.feddisco.FedDISCO",
            "averaging.feddisco.FedDISCOClient",
            "Ye et al., ICML 2023",
        ),
        Method(
            "fedprox-ft",
            "personal.fedprox_ft.FedProxFT",
            "personal.fedprox_ft.FedProxFTClient",
            "Li et al., MLSys 2020, arXiv:1812.06127, then fine-tuning",
        ),
        Method(
            "fedper",
            "personal.fedper.FedPer",
            "personal.partial.PartialClient",
            "Arivazhagan et al., arXiv:1912.00818",
        ),
        Method(
            "fedrep",
            "personal.fedrep.FedRep",
            "personal.fedrep.FedRepClient",
            "Collins et al., ICML 2021, arXiv:2102.07078",
        ),
        Method(
            "lg-fedavg",
            "personal.lg_fedavg.LGFedAvg",
            "personal.partial.PartialClient",
            "Liang et al., arXiv:2001.01523",
        ),
        Method(
            "fedpac",
            "personal.fedpac.FedPAC",
            "personal.fedpac.FedPACClient",
            "Xu et al., ICLR 2023, arXiv:2306.11867",
        ),
        Method(
            "fedakd",
            "distillation.fedakd.FedAKD",
            "distillation.fedakd.FedAKDClient",
            "Yu et al., KDD 2025, arXiv:2507.08617",
        ),
        Method(
            "cffl",
            "reward.cffl.CFFL",
            "reward.cffl.CFFLClient",
            "Lyu et al., Federated Learning (LNCS 12500), 2020, arXiv:2008.12161",
        ),
        Method(
            "cgsv",
            "reward.cgsv.CGSV",
            "averaging.fedavg.FedAvgClient",
            "Xu et al., NeurIPS 2021",
        ),
        Method(
            "fedave",
            "reward.fedave.FedAVE",
            "reward.fedave.FedAVEClient",
            "Wang et al., Neurocomputing 574:127227, 2024",
        ),
        Method(
            "fedsac",
            "reward.fedsac.FedSAC",
            "reward.fedsac.FedSACClient",
            "Wang et al., KDD 2024, arXiv:2405.18291 (our reading)",
        ),
        Method(
            "fedmd",
            "distillation.fedmd.FedMD",
            "distillation.fedmd.FedMDClient",
            "Li & Wang, NeurIPS workshop 2019, arXiv:1910.03581",
        ),
        Method(
            "fedmd-lf",
            "distillation.fedmd.FedMDLF",
            "distillation.fedmd.FedMDClient",
            _FEDAL,
        ),
        Method(
            "fedal", "distillation.fedal.FedAL", "distillation.fedal.FedALClient", _FEDAL
        ),
        Method(
            "fd",
            "distillation.fd.FD",
            "distillation.fd.FDClient",
            "Jeong et al., 2018, arXiv:1811.11479",
        ),
        Method(
            "fedproto",
            "distillation.fedproto.FedProto",
            "distillation.fedproto.FedProtoClient",
            _FEDPROTO,
        ),
        Method(
            "fedproto-public",
            "distillation.fedproto.FedProtoPublic",
            "distillation.fedproto.FedProtoPublicClient",
            f"{_FEDPROTO}, as {_FEDAL}",
        ),
        Method(
            "cfd",
            "distillation.cfd.CFD",
            "distillation.cfd.CFDClient",
            "Sattler et al., arXiv:2012.00632",
        ),
        Method(
            "fccl",
            "distillation.fccl.FCCL",
            "distillation.fccl.FCCLClient",
            "Huang et al., CVPR 2022",
        ),
        Method(
            "fccl-plus",
            "distillation.fccl_plus.FCCLPlus",
            "distillation.fccl_plus.FCCLPlusClient",
            "Huang et al., IEEE TPAMI 2024, arXiv:2309.16286",
        ),
        Method(
            "feddf",
            "distillation.feddf.FedDF",
            "distillation.feddf.FedDFClient",
            "Lin et al., NeurIPS 2020, arXiv:2006.07242",
        ),
        Method(
            "feddf-al",
            "distillation.feddf_al.FedDFAL",
            "distillation.feddf.FedDFClient",
            _FEDAL,
        ),
        Method(
            "fedpara",
            "decomposition.fedpara.FedPara",
            "averaging.fedavg.FedAvgClient",
            _FEDPARA,
        ),
        Method(
            "pfedpara",
            "decomposition.fedpara.PFedPara",
            "personal.partial.PartialClient",
            _FEDPARA,
        ),
    )
}


def find_method(name: str) -> Method:
    """Return the method of a name.

    Raises
    ------
    ConfigError
        If there is no such method.
    """
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown method {name!r}: {hint}known: {', '.join(METHODS)}")
    return METHODS[name]


def load_class(side: str, path: str) -> type:
    """Import and return a class of a side, ``strategies`` or ``clients``, by its path."""
    module, _, name = path.rpartition(".")
    loaded: type = getattr(import_module(f"fedsuite.{side}.{module}"), name)
    return loaded


_WRAPPERS = {
    "strategies": {"FilterDecomposition": "decomposition.filter_decomposition"},
    "clients": {"DecomposedClient": "decomposition.filter_decomposition"},
}
"""File of each class that wraps a method, by side."""


def exported_classes(side: str) -> dict[str, str]:
    """Return the modules by class name of one side, ``strategies`` or ``clients``."""
    paths = [m.strategy if side == "strategies" else m.client for m in METHODS.values()]
    files = {path.rpartition(".")[2]: path.rpartition(".")[0] for path in paths}
    files |= _WRAPPERS[side]
    return {name: f"fedsuite.{side}.{file}" for name, file in files.items()}
