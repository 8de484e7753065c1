"""The registry of methods: name, strategy, client and paper, one line per method."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from fedsuite.core.errors import ConfigError, nearest
from fedsuite.core.keys import Value, toml_text
from fedsuite.core.plug_ins import Registry, import_code, is_code


@dataclass(frozen=True)
class Method:
    """A method of federated learning.

    Parameters
    ----------
    name
        Value of the key ``method`` in an experiment.
    strategy, client
        ``family.file.Class`` in ``fedsuite/strategies`` and ``fedsuite/clients``, or
        ``module:Class`` of a package that adds the method.
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

_FEDAVG = "averaging.fedavg.FedAvgClient"
_PARTIAL = "personal.partial.PartialClient"
_PROBED = "fair.probed.ProbedClient"


_ROWS: tuple[tuple[str, ...], ...] = (
    ("fedavg", "averaging.fedavg.FedAvg", _MCMAHAN),
    ("fedsgd", "averaging.fedsgd.FedSGD", _MCMAHAN),
    ("newton", "averaging.newton.Newton", "Wu et al., JAMIA 19(5):758-764, 2012"),
    ("fedprox", "drift.fedprox.FedProx", "Li et al., MLSys 2020, arXiv:1812.06127"),
    ("standalone", "averaging.standalone.Standalone", "-"),
    (
        "cyclic",
        "averaging.cyclic.Cyclic",
        "Chang et al., JAMIA 25(8):945-954, 2018",
        _FEDAVG,
    ),
    (
        "fedavg-ft",
        "personal.fedavg_ft.FedAvgFT",
        "Collins et al., NeurIPS 2022, arXiv:2205.13692",
    ),
    (
        "fedbuff",
        "averaging.fedbuff.FedBuff",
        "Nguyen et al., AISTATS 2022, arXiv:2106.06639",
        _FEDAVG,
    ),
    (
        "heterofl",
        "averaging.heterofl.HeteroFL",
        "Diao et al., ICLR 2021, arXiv:2010.01264",
        _FEDAVG,
    ),
    (
        "fednova",
        "drift.fednova.FedNova",
        "Wang et al., NeurIPS 2020, arXiv:2007.07481",
        _FEDAVG,
    ),
    ("fedntd", "drift.fedntd.FedNTD", "Lee et al., NeurIPS 2022, arXiv:2106.03097"),
    ("moon", "drift.moon.MOON", "Li et al., CVPR 2021, arXiv:2103.16257"),
    ("fedmpr", "drift.fedmpr.FedMPR", "Goksu & Pugeault, arXiv:2412.15010 (our reading)"),
    (
        "scaffold",
        "drift.scaffold.Scaffold",
        "Karimireddy et al., ICML 2020, arXiv:1910.06378",
    ),
    ("feddyn", "drift.feddyn.FedDyn", "Acar et al., ICLR 2021, arXiv:2111.04263"),
    ("feddc", "drift.feddc.FedDC", "Gao et al., CVPR 2022, arXiv:2203.11751"),
    ("ditto", "personal.ditto.Ditto", "Li et al., ICML 2021, arXiv:2012.04221"),
    ("fedeba", "fair.fedeba.FedEBA", _FEDEBA),
    ("fedeba-plus", "fair.fedeba_plus.FedEBAPlus", _FEDEBA, "fair.fedeba.FedEBAPlusClient"),
    (
        "prac-fedeba-plus",
        "fair.fedeba_plus.PracFedEBAPlus",
        _FEDEBA,
        "fair.fedeba.FedEBAClient",
    ),
    ("qffl", "fair.qffl.QFFL", "Li et al., ICLR 2020, arXiv:1905.10497", _PROBED),
    ("fedfv", "fair.fedfv.FedFV", "Wang et al., IJCAI 2021, arXiv:2104.14937", _PROBED),
    ("term", "fair.term.TERM", "Li et al., ICLR 2021, arXiv:2007.01162", _PROBED),
    ("afl", "fair.afl.AFL", "Mohri et al., ICML 2019, arXiv:1902.00146", _PROBED),
    ("propfair", "fair.propfair.PropFair", "Zhang et al., TMLR 2023, arXiv:2202.01666"),
    (
        "fedmgda-plus",
        "fair.fedmgda_plus.FedMGDAPlus",
        "Hu et al., IEEE TNSE 2022, arXiv:2006.11489",
        _FEDAVG,
    ),
    ("aaggff", "fair.aaggff.AAggFF", "Hahn et al., ICML 2024, arXiv:2405.20821", _PROBED),
    (
        "rank-core-fed",
        "fair.rank_core_fed.RankCoreFed",
        "Ray Chaudhury et al., ICML 2024 (our reading)",
    ),
    ("focus", "fair.focus.FOCUS", "Chu et al., arXiv:2207.10265"),
    (
        "fedwavg",
        "averaging.fedwavg.FedwAvg",
        "Hong et al., Applied Sciences 12(12):5806, 2022 (our reading)",
    ),
    ("feddisco", "averaging.feddisco.FedDISCO", "Ye et al., ICML 2023"),
    (
        "fedprox-ft",
        "personal.fedprox_ft.FedProxFT",
        "Li et al., MLSys 2020, arXiv:1812.06127, then fine-tuning",
    ),
    ("fedper", "personal.fedper.FedPer", "Arivazhagan et al., arXiv:1912.00818", _PARTIAL),
    ("fedrep", "personal.fedrep.FedRep", "Collins et al., ICML 2021, arXiv:2102.07078"),
    ("fedbabu", "personal.fedbabu.FedBABU", "Oh et al., ICLR 2022, arXiv:2106.06042"),
    (
        "lg-fedavg",
        "personal.lg_fedavg.LGFedAvg",
        "Liang et al., arXiv:2001.01523",
        _PARTIAL,
    ),
    ("apfl", "personal.apfl.APFL", "Deng et al., arXiv:2003.13461"),
    (
        "per-fedavg",
        "personal.per_fedavg.PerFedAvg",
        "Fallah et al., NeurIPS 2020, arXiv:2002.07948",
    ),
    ("fedala", "personal.fedala.FedALA", "Zhang et al., AAAI 2023, arXiv:2212.01197"),
    ("pfedme", "personal.pfedme.PFedMe", "Dinh et al., NeurIPS 2020, arXiv:2006.08848"),
    ("fedrod", "personal.fedrod.FedRoD", "Chen & Chao, ICLR 2022, arXiv:2107.00778"),
    ("fedbn", "personal.fedbn.FedBN", "Li et al., ICLR 2021, arXiv:2102.07623", _PARTIAL),
    (
        "pfedck",
        "personal.pfedck.PFedCK",
        "Zhang & Shi, Electronics 13(5):857, 2024 (our reading)",
    ),
    ("fml", "personal.fml.FML", "Shen et al., arXiv:2006.16765"),
    ("ifca", "personal.ifca.IFCA", "Ghosh et al., NeurIPS 2020, arXiv:2006.04088"),
    ("fedem", "personal.fedem.FedEM", "Marfoq et al., NeurIPS 2021, arXiv:2108.10252"),
    ("lp-proj", "personal.lp_proj.LpProj", "Lin et al., NeurIPS 2022"),
    ("fedas", "personal.fedas.FedAS", "Yang et al., CVPR 2024"),
    ("fedpac", "personal.fedpac.FedPAC", "Xu et al., ICLR 2023, arXiv:2306.11867"),
    ("fedakd", "distillation.fedakd.FedAKD", "Yu et al., KDD 2025, arXiv:2507.08617"),
    (
        "cffl",
        "reward.cffl.CFFL",
        "Lyu et al., Federated Learning (LNCS 12500), 2020, arXiv:2008.12161",
    ),
    ("cgsv", "reward.cgsv.CGSV", "Xu et al., NeurIPS 2021", _FEDAVG),
    ("fedave", "reward.fedave.FedAVE", "Wang et al., Neurocomputing 574:127227, 2024"),
    (
        "fedsac",
        "reward.fedsac.FedSAC",
        "Wang et al., KDD 2024, arXiv:2405.18291 (our reading)",
    ),
    (
        "fedmd",
        "distillation.fedmd.FedMD",
        "Li & Wang, NeurIPS workshop 2019, arXiv:1910.03581",
    ),
    ("fedmd-lf", "distillation.fedmd.FedMDLF", _FEDAL, "distillation.fedmd.FedMDClient"),
    ("fedal", "distillation.fedal.FedAL", _FEDAL),
    ("fd", "distillation.fd.FD", "Jeong et al., 2018, arXiv:1811.11479"),
    ("fedproto", "distillation.fedproto.FedProto", _FEDPROTO),
    (
        "fedproto-public",
        "distillation.fedproto.FedProtoPublic",
        f"{_FEDPROTO}, as {_FEDAL}",
    ),
    ("cfd", "distillation.cfd.CFD", "Sattler et al., arXiv:2012.00632"),
    ("fccl", "distillation.fccl.FCCL", "Huang et al., CVPR 2022"),
    (
        "fccl-plus",
        "distillation.fccl_plus.FCCLPlus",
        "Huang et al., IEEE TPAMI 2024, arXiv:2309.16286",
    ),
    ("feddf", "distillation.feddf.FedDF", "Lin et al., NeurIPS 2020, arXiv:2006.07242"),
    ("feddf-al", "distillation.feddf_al.FedDFAL", _FEDAL, "distillation.feddf.FedDFClient"),
    ("fedpara", "decomposition.fedpara.FedPara", _FEDPARA, _FEDAVG),
    ("pfedpara", "decomposition.fedpara.PFedPara", _FEDPARA, _PARTIAL),
)
"""Name, strategy and paper, and the client unless it is named as the strategy."""


def _method(name: str, strategy: str, paper: str, client: str = "") -> Method:
    return Method(name, strategy, client or f"{strategy}Client", paper)


_OURS: Mapping[str, Method] = {row[0]: _method(*row) for row in _ROWS}


def _added(name: str, code: str, strategy: object) -> Method:
    """Return the method of a package's strategy."""
    if not (isinstance(strategy, type) and hasattr(strategy, "method_keys")):
        raise ConfigError(f"{code} is no strategy: derive a class from one of fedsuite's")
    return Method(name, code, _client_of(strategy), "-")


def _client_of(strategy: type) -> str:
    """Return the client that a strategy names, or else that of the method it comes from."""
    clients = {f"fedsuite.strategies.{m.strategy}": m.client for m in _OURS.values()}
    by_name = {client.rpartition(".")[2]: client for client in clients.values()}
    for parent in strategy.__mro__:
        ours = f"{parent.__module__}.{parent.__qualname__}"
        if ours in clients:
            return clients[ours]
        needs = vars(parent).get("NEEDS_OF_CLIENT")
        if needs is not None and needs.client:
            client: str = by_name.get(needs.client, needs.client)
            if client not in by_name.values() and not is_code(client):
                raise ConfigError(
                    f"client {client!r} of {ours}: name a class of fedsuite.clients, or "
                    "module:Class"
                )
            return client
    return _FEDAVG


OPTIONS: Mapping[str, Mapping[str, Value]] = {
    "fedadam": {"server-optimizer": "adam"},
    "fedyogi": {"server-optimizer": "yogi"},
    "fedadagrad": {"server-optimizer": "adagrad"},
    "fedavgm": {"server-momentum": 0.9},
    "fedopt": {"server-optimizer": "adam"},
    "fedlc": {"logit-calibration": 1.0},
    "feddecorr": {"decorrelation-weight": 0.1},
    "fedvarp": {"fedvarp": True},
}
"""Methods that are options, of fedavg first of all: name to the keys that give them."""


def _option(name: str) -> str:
    keys = ", ".join(f"{key} = {toml_text(value)}" for key, value in OPTIONS[name].items())
    return f'{name} is an option of fedavg: method = "fedavg" with {keys}'


METHODS: Registry[Method] = Registry(
    "method",
    "fedsuite.methods",
    _OURS,
    _added,
    elsewhere={name: _option(name) for name in OPTIONS},
)
"""The methods by name, those of installed packages too."""


def find_method(name: str) -> Method:
    """Return the method of a name.

    Raises
    ------
    ConfigError
        If there is no such method.
    """
    if name not in METHODS:
        if name in METHODS.elsewhere:
            raise ConfigError(METHODS.elsewhere[name])
        near = nearest(name, METHODS)
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"unknown method {name!r}: {hint}known: {', '.join(METHODS)}")
    return METHODS[name]


def load_class(side: str, path: str) -> type:
    """Import and return a class of a side, ``strategies`` or ``clients``, by its path.

    Raises
    ------
    ConfigError
        If a package's class cannot be imported.
    """
    if is_code(path):
        own_class = import_code(path)
        if not isinstance(own_class, type):
            raise ConfigError(f"{path} is no class: name a class of {side}")
        return own_class
    module, _, name = path.rpartition(".")
    loaded: type = getattr(import_module(f"fedsuite.{side}.{module}"), name)
    return loaded


_WRAPPERS = {
    "strategies": {"FilterDecomposition": "decomposition.filter_decomposition"},
    "clients": {"DecomposedClient": "decomposition.filter_decomposition"},
}
"""File of each class that wraps a method, by side."""


def exported_classes(side: str) -> dict[str, str]:
    """Return fedsuite's modules by class name of a side, ``strategies`` or ``clients``."""
    paths = [m.strategy if side == "strategies" else m.client for m in _OURS.values()]
    files = {path.rpartition(".")[2]: path.rpartition(".")[0] for path in paths}
    files |= _WRAPPERS[side]
    return {name: f"fedsuite.{side}.{file}" for name, file in files.items()}
