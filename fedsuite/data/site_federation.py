"""Data of a federation whose clients are sites with data of their own."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.keys import Value
from fedsuite.core.text import read_toml
from fedsuite.data.catalog import DATASETS
from fedsuite.data.columns import difference
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.division import Partition
from fedsuite.data.federated import ClientData, FederatedData
from fedsuite.data.loading import public_options
from fedsuite.data.public import read_public_folder
from fedsuite.data.site import Site, site_from_config
from fedsuite.data.site_loading import load_site_data
from fedsuite.data.specs import DatasetSpec, RawData
from fedsuite.data.splits import Parts

SITE_FILE = "site.toml"


class SiteFederation(FederatedData):
    """Description of data that stays at its sites: shapes, classes and scaling.

    The server gets no rows. A client's rows are returned only at the client's site.

    Parameters
    ----------
    spec
        The data set, which all sites' data must match.
    names
        Names of the sites; client k is the k-th site.
    sites
        Sites by client, as far as known in this process: all in a rehearsal, none on a
        server.
    settings, seed
        The keys of the experiment.
    public
        Unscaled features of the public data; None for no public data.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        names: Sequence[str],
        sites: Mapping[int, Site],
        settings: DataSettings,
        seed: int,
        public: npt.NDArray[np.generic] | None = None,
    ) -> None:
        none = np.empty(0, np.int64)
        raw = RawData(np.empty((0, *spec.input_shape), np.float32), none)
        nobody = (none,) * len(names)
        super().__init__(
            spec,
            raw,
            Parts(none, none, none, none),
            Partition(nobody, nobody),
            settings.scaling,
            "sites",
            public=public,
        )
        self._names = tuple(names)
        self._sites = sites
        self._settings = settings
        self._seed = seed
        self._site_data: dict[Site, ClientData] = {}

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the sites' names, because the rows are unknown here."""
        return hashlib.sha256("/".join(("sites", *self._names)).encode()).hexdigest()

    @property
    @override
    def description(self) -> dict[str, Value]:
        return {
            "dataset": self.spec.name,
            "partitioner": self.partitioner,
            "sites": ", ".join(self._names),
            "num-clients": self.num_clients,
            "num-classes": self.num_classes,
            "input-shape": "x".join(map(str, self.input_shape)),
            **self._public_description(),
            "fingerprint": self.fingerprint,
        }

    @property
    @override
    def columns(self) -> tuple[str, ...]:
        return self.client(0).columns if 0 in self._sites else ()

    @override
    def client(self, client_id: int) -> ClientData:
        if client_id not in self._sites:
            raise DataError(
                f"client {client_id}: the rows of a site lie at its own node and nowhere "
                "else; site-dirs = FOLDER rehearses with copies"
            )
        site = self._sites[client_id]
        if site not in self._site_data:
            data = load_site_data(
                site,
                self.spec,
                self._scaling,
                self._settings.test_fraction,
                self._settings.client_validation_fraction,
                self._seed,
            )
            for other, known in self._site_data.items():
                if reason := difference(data.columns, known.columns):
                    raise DataError(
                        f"sites {other.name} and {site.name} have other columns: "
                        f"{site.name} {reason}: give all sites the same names in the same "
                        "order"
                    )
            self._site_data[site] = data
        return self._site_data[site]

    @override
    def class_counts(self) -> npt.NDArray[np.int64]:
        raise DataError(
            "the experiment has sites with data of their own: which classes they hold "
            "stays with them"
        )

    test_class_counts = class_counts


def site_federation(
    values: Mapping[str, Value], site: Site | None, seed: int
) -> SiteFederation:
    """Return the data of an experiment with sites, as far as this process may know it.

    Parameters
    ----------
    values
        The experiment by kebab-case key.
    site
        This node's data. None on a server, and in a rehearsal, where all data lies below
        the key ``site-dirs``.
    seed
        Seed of the experiment, which decides the sites' validation rows.
    """
    settings = DataSettings.of(values)
    names, folder = settings.site_names, settings.site_dirs
    sites: dict[int, Site] = {}
    if site is not None:
        # Under any client number, as the server numbers the nodes.
        sites = dict.fromkeys(range(len(names)), site)
    elif folder:
        sites = dict(enumerate(rehearsal_sites(Path(folder).expanduser(), names)))
    spec = DATASETS[settings.dataset]
    spec = spec.source.of(values).shaped(spec)
    public = public_options(settings)
    features = None
    if public.folder is not None:
        features = public.choose(read_public_folder(spec, public.folder))
    return SiteFederation(
        spec,
        names,
        sites,
        settings,
        seed,
        features,
    )


def rehearsal_sites(folder: Path, names: Sequence[str]) -> list[Site]:
    """Return the sites below one folder, each in a sub-folder of its name.

    A file ``site.toml`` there has the node's configuration without ``data``.
    """
    sites = []
    for name in names:
        data = (folder / name).resolve()
        if not data.is_dir():
            raise DataError(
                f"key site-dirs = {str(folder)!r}: no sub-folder {name!r} in it: make one "
                "for each of sites"
            )
        settings = data / SITE_FILE
        own_settings = _read_settings(settings) if settings.exists() else {}
        sites.append(site_from_config({"site": name, **own_settings, "data": str(data)}))
    return sites


def _read_settings(path: Path) -> dict[str, Value]:
    try:
        settings = read_toml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML ({error}): mend it") from error
    if "data" in settings:
        raise ConfigError(f"{path}: data is the folder itself: take the key out")
    return settings
