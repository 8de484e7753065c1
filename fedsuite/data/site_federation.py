"""Data of a federation whose clients are sites with data of their own."""

import functools
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fedsuite.core.column_scaling import ColumnScaling, ColumnSums
from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.keys import Value
from fedsuite.core.text import read_toml
from fedsuite.data.columns import difference
from fedsuite.data.data_settings import DataSettings
from fedsuite.data.division import Partition
from fedsuite.data.federated import (
    ClientData,
    FederatedData,
    number_positions,
    scaling_rule,
)
from fedsuite.data.loading import public_options
from fedsuite.data.owners import named_clients, refuse_nobody
from fedsuite.data.public import read_public_folder
from fedsuite.data.site import Site, site_from_config
from fedsuite.data.site_loading import load_site_rows, scaled_rows
from fedsuite.data.site_statistics import (
    Statistics,
    federated_spec,
    site_statistics,
    statistics_lines,
)
from fedsuite.data.specs import DatasetSpec, RawData
from fedsuite.data.splits import Parts

SITE_FILE = "site.toml"

_WIDE = 1000.0
"""Size of values beyond which a column needs to be scaled."""

logger = logging.getLogger(__name__)


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
        self._scaling_of_all: ColumnScaling | None = None
        self._site_rows: dict[Site, ClientData] = {}
        self._site_data: dict[Site, ClientData] = {}
        self.told_scaling: Callable[[], ColumnScaling | None] = lambda: None

    @functools.cached_property
    @override
    def evaluation_only(self) -> frozenset[int]:
        """Sites that never train: by the key, by their own setting, or without rows to.

        What sites alone know is known of those in this process.
        """
        text, count = self._settings.evaluation_only, self.num_clients
        new = named_clients(text, dict(enumerate(self._names)), count)
        new = new.union(k for k in self._sites if self.never_trains(k))
        if not self._sites or self._settings.site_dirs:
            refuse_nobody(text, new, count)
        return new

    def never_trains(self, client_id: int) -> bool:
        """Return whether a site says itself that it only evaluates, or has to."""
        site = self._site(client_id)
        return site.evaluation_only or not len(self.site_rows(client_id).train)

    @property
    @override
    def client_names(self) -> tuple[str, ...]:
        return self._names

    @property
    def needs_sums(self) -> bool:
        """Whether sites add up their columns before the first round."""
        return scaling_rule(self.spec, self._settings.scaling) is not None

    @property
    @override
    def column_scaling(self) -> ColumnScaling | None:
        """What is done to columns of tables; None where nothing is, or nobody knows yet.

        A rehearsal adds up what its sites would tell. Elsewhere :attr:`told_scaling` says
        what the server made of the sites' sums.
        """
        rule = scaling_rule(self.spec, self._settings.scaling)
        if rule is None:
            return None
        if not self._settings.site_dirs:
            told = self.told_scaling()
            return None if told is None else replace(told, rule=rule)
        if self._scaling_of_all is None:
            trained = (k for k in range(self.num_clients) if k not in self.evaluation_only)
            every = [self.sums(client_id) for client_id in trained]
            self._scaling_of_all = ColumnScaling.from_sums(rule, every)
        return self._scaling_of_all

    def sums(self, client_id: int) -> ColumnSums:
        """Return what a site tells of its columns, by its operator's least number of rows.

        Raises
        ------
        DataError
            If the site has fewer training rows.
        """
        site, rows = self._site(client_id), self.site_rows(client_id).train
        if len(rows) < site.least_rows:
            raise DataError(
                f"site {site.name}: {len(rows)} training rows, and least-rows = "
                f"{site.least_rows} in its node-config: it tells no sums of so few; bring "
                "more rows, or leave the site out"
            )
        numbers = rows.features.numpy()[:, number_positions(self.spec)]
        return ColumnSums.of(numbers, site.least_rows)

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
        site = self._site(client_id)
        if site not in self._site_data:
            rows, scaling = self.site_rows(client_id), self.column_scaling
            if self.needs_sums and scaling is None:
                raise DataError(
                    f"site {site.name}: the server has told no means of the columns in "
                    "this run: start the run again"
                )
            data = scaled_rows(rows, self.spec, self._scaling, scaling)
            self._site_data[site] = data
            if not self.needs_sums:
                # Nobody asks for them again but by what both have.
                self._site_rows[site] = data
        return self._site_data[site]

    def site_rows(self, client_id: int) -> ClientData:
        """Return a site's rows, where they lie, as far as the site alone can make them."""
        site = self._site(client_id)
        if site not in self._site_rows:
            data = load_site_rows(
                site,
                self.spec,
                self._settings.test_fraction,
                self._settings.client_validation_fraction,
                self._seed,
            )
            for other, known in self._site_rows.items():
                if reason := difference(data.columns, known.columns):
                    raise DataError(
                        f"sites {other.name} and {site.name} have other columns: "
                        f"{site.name} {reason}: give all sites the same names in the same "
                        "order"
                    )
            self._warn_of_scales(site, data)
            self._site_rows[site] = data
        return self._site_rows[site]

    def _warn_of_scales(self, site: Site, data: ClientData) -> None:
        """Warn the site of columns with which training as they are seldom gets anywhere."""
        if self.spec.is_image or self.spec.words or self._settings.scaling == "federated":
            return
        values = data.train.features.numpy()[:, number_positions(self.spec)]
        spreads = np.nan_to_num(np.nanmax(np.abs(values), axis=0, initial=0.0))
        wide = [int(k) for k in np.flatnonzero(spreads > _WIDE)]
        if wide:
            names = self.spec.schema.number_inputs if self.spec.schema else data.columns
            named = [names[k] if k < len(names) else f"number {k}" for k in wide[:5]]
            logger.warning(
                "site %s: values beyond %g in %s%s: training may get nowhere on them; "
                "scaling = 'federated' scales all columns alike at all sites",
                site.name,
                _WIDE,
                ", ".join(named),
                f" and {len(wide) - 5} more columns" if len(wide) > 5 else "",
            )

    def _site(self, client_id: int) -> Site:
        if client_id not in self._sites:
            raise DataError(
                f"client {client_id}: the rows of a site lie at its own node and nowhere "
                "else; site-dirs = FOLDER rehearses with copies"
            )
        return self._sites[client_id]

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
    spec = federated_spec(values)
    sites: dict[int, Site] = {}
    if site is not None:
        # Under any client number, as the server numbers the nodes.
        sites = dict.fromkeys(range(len(names)), site)
    elif folder:
        sites = dict(enumerate(_rehearsed(settings, spec)))
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
        if isinstance(own_settings.get("schema"), str):
            own_settings["schema"] = str(data / str(own_settings["schema"]))
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


def rehearsal_statistics(values: Mapping[str, Value]) -> dict[str, Statistics]:
    """Return what each site of a rehearsal would tell of its table, by name."""
    settings = DataSettings.of(values)
    spec = federated_spec(values)
    sites = _rehearsed(settings, spec)
    told = (site_statistics(site, spec, settings.test_fraction) for site in sites)
    return dict(zip(settings.site_names, told, strict=True))


def check_site(site: Site, values: Mapping[str, Value]) -> list[str]:
    """Read a site's data as a run would; return lines that say what is there.

    Parameters
    ----------
    site
        The site.
    values
        The experiment by kebab-case key.

    Raises
    ------
    FedsuiteError
        One line with all that is wrong.
    """
    settings, spec = DataSettings.of(values), federated_spec(values)
    rows = load_site_rows(site, spec, settings.test_fraction)
    inputs = ", ".join(rows.columns) or "x".join(map(str, spec.input_shape))
    read = (
        f"site {site.name}: {len(rows.train)} training rows and {len(rows.test)} test rows "
        f"can be read; inputs: {inputs}"
    )
    told = site_statistics(site, spec, settings.test_fraction)
    return [read, *statistics_lines({site.name: told})]


def _rehearsed(settings: DataSettings, spec: DatasetSpec) -> list[Site]:
    folder = Path(settings.site_dirs).expanduser()
    rehearsed = rehearsal_sites(folder, settings.site_names)
    # Who rehearses has written the schema, and needs no copies of it.
    return [replace(site, schema=site.schema or spec.schema) for site in rehearsed]
