"""Keys of an experiment's data, whatever the partitioner."""

from dataclasses import replace
from typing import Literal

from fedsuite.core.errors import Refused
from fedsuite.core.keys import AUTO, Unless, With
from fedsuite.core.settings import Settings, key
from fedsuite.core.tasks import LOG_HAZARD_RATIO, TASKS, interval_times
from fedsuite.core.text import is_file_name
from fedsuite.data.catalog import DATASETS, PARTITIONERS
from fedsuite.data.specs import DatasetSpec


class DataSettings(Settings):
    """Which data there are, and how clients get their part.

    The keys of one data set or partitioner stand in its description.
    """

    dataset: str = key(
        default="digits", help="data set; see fedsuite datasets", choices=DATASETS
    )
    task: str = key(
        default=AUTO,
        help="what models are trained for; auto is what the data set knows, else "
        "classification",
        choices=(AUTO, *TASKS),
    )
    interval_ends: str = key(
        default="",
        help="rising times that end the intervals of the loss discrete-time, "
        "comma-separated; a model then gives a number for each",
        needs=(With("loss", "discrete-time"),),
    )
    data_dir: str = key(
        local=True,
        default=AUTO,
        path="FEDSUITE_DATA",
        help="folder with one sub-folder of Parquet files per data set, or the folder of "
        "own-table's and own-pictures' files; auto is the environment variable "
        "FEDSUITE_DATA, else the hub",
    )
    num_clients: int = key(
        default=10, help="clients that the data is divided among", minimum=1
    )
    partitioner: str = key(
        default="iid", help="how the data is divided", choices=PARTITIONERS
    )
    evaluation_only: str = key(
        default="",
        help="clients that never train and are evaluated all the same, as sites that join "
        "later, by number or name (of sites, of a table's client-column, of the data set's "
        "hospitals), comma-separated; their scores stand apart",
    )
    sites: str = key(
        default="",
        help="names of the registered SuperNodes that bring data of their own, "
        "comma-separated, one client each; empty divides the data set, which else gives "
        "shape and scaling",
    )
    site_rows: str = key(
        default="",
        help="training rows of each site, comma-separated, in the order of sites, as their "
        "operators told yours: a site counts for no more; empty takes what each says at "
        "its first hello",
        needs=(Unless("sites", ""),),
    )
    site_dirs: str = key(
        local=True,
        default="",
        path="",
        help="rehearses sites in the local engine: folder with a sub-folder of data for "
        "each",
    )
    only_statistics: bool = key(
        local=True,
        default=False,
        help="asks the sites for statistics of their tables in place of training; set by "
        "`fedsuite deploy statistics`",
        needs=(Unless("sites", ""),),
    )
    test_fraction: float = key(
        default=0.2,
        help="part of the rows held out for tests, in data sets without a published test "
        "part",
        above=0,
        maximum=0.9,
    )
    fresh_test_split: bool = key(
        default=False,
        help="draw the test part, the server's validation rows and public rows anew for "
        "each seed; a published test part is first pooled with the training part, and the "
        "new one is as large; false has one split for all seeds",
    )
    client_test_fraction: float = key(
        default=0.0,
        help="share of the training part split off for the clients' own tests, the test "
        "part then being a global test set alone; 0 tests clients on rows of the test part",
        minimum=0.0,
        maximum=0.9,
    )
    client_validation_fraction: float = key(
        default=0.0,
        help="share of each client's training rows that it keeps to validate on, drawn by "
        "class; best-model-metric and early-stop-metric then choose by these; 0 is none",
        minimum=0.0,
        maximum=0.9,
    )
    server_validation_fraction: float = key(
        default=0.0,
        help="share of the training part that the server keeps to validate on; 0 is none",
        minimum=0.0,
        maximum=0.9,
    )
    public_size: int = key(
        default=0,
        help="rows of the training part that no client gets: public data, without labels, "
        "for methods that need some; 0 is none",
        minimum=0,
    )
    public_used: int = key(
        default=0,
        help="use only the first so many rows of the public data, to compare sizes on the "
        "same private rows; 0 is all",
        minimum=0,
    )
    public_dir: str = key(
        local=True,
        default="",
        path="FEDSUITE_PUBLIC",
        help="folder with Parquet files of public images of your own, without labels, of "
        "which public-size takes the first rows (0 is all); auto is the environment "
        "variable FEDSUITE_PUBLIC of each machine; empty holds out rows instead",
    )
    scaling: Literal["standard", "unit", "none", "federated"] = key(
        default="standard",
        help="unit maps pixels to 0..1; standard then takes off the mean of each channel "
        "and divides by its standard deviation (digits: 0..1 in both); columns of tables "
        "stay as they are, as pixels do by none; federated brings each column of a table "
        "to mean 0 and deviation 1, by the sums of all clients' training rows",
    )
    label_noise: float = key(
        default=0.0,
        help="share of each client's training rows whose label is flipped to a random "
        "other class; 0 is none, 1 leaves no label right",
        minimum=0.0,
        maximum=1.0,
    )

    @property
    def task_name(self) -> str:
        """The task, by the data set where the key leaves it open."""
        return DATASETS[self.dataset].task if self.task == AUTO else self.task

    @property
    def spec(self) -> DatasetSpec:
        """The data set, with its task and its intervals of time, if there are any."""
        spec = replace(DATASETS[self.dataset], task=self.task_name)
        if not spec.labels.has_own_width:
            return spec
        names: tuple[str, ...] = (LOG_HAZARD_RATIO,)
        if self.interval_ends:
            interval_times(self.interval_ends)  # refuses what are no rising times
            ends = self.interval_ends.split(",")
            names = tuple(f"survival to {end.strip()}" for end in ends)
        return replace(spec, num_classes=len(names), class_names=names)

    @property
    def site_names(self) -> tuple[str, ...]:
        """The sites; client k is the k-th.

        Raises
        ------
        ConfigError
            If a name cannot be one, or stands there twice.
        """
        if not self.sites:
            return ()
        names = tuple(name.strip() for name in self.sites.split(","))
        for name in names:
            if not is_file_name(name, 63):
                raise Refused(
                    {"sites": self.sites},
                    f"name {name!r}: expected letters, digits, dots, dashes and "
                    "underscores, 63 at most, as the SuperNode was registered, and no name "
                    "of a device on Windows, such as nul",
                )
            if names.count(name) > 1:
                raise Refused({"sites": self.sites}, f"it names {name!r} twice")
        return names

    @property
    def rows_of_sites(self) -> dict[int, int]:
        """Site to its number of training rows; empty where nobody wrote them.

        Raises
        ------
        ConfigError
            If it is not one number for each site.
        """
        if not self.site_rows:
            return {}
        rows = [text.strip() for text in self.site_rows.split(",")]
        if len(rows) != len(self.site_names) or not all(map(str.isdecimal, rows)):
            raise Refused(
                {"site-rows": self.site_rows, "sites": self.sites},
                f"expected {len(self.site_names)} whole numbers with commas between them",
                "write one for each site, in the order of {sites}",
            )
        return dict(enumerate(map(int, rows)))
