"""The embedded data set: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

import importlib.util
from pathlib import Path

import numpy as np

from fedsuite.data.specs import DatasetSpec, RawData, Source


class Digits(Source):
    """The rows of scikit-learn's digits."""

    def load(self, spec: DatasetSpec, data_dir: Path | None) -> RawData:
        """Read the digits out of the installed scikit-learn; ``data_dir`` plays no part.

        The packaged table is read directly, because importing scikit-learn takes a second
        per process. If the table has moved, scikit-learn itself loads it.
        """
        table_file = _packaged_table()
        if table_file is not None:
            table = np.loadtxt(table_file, delimiter=",", dtype=np.int64)
        else:
            from sklearn.datasets import load_digits

            digits = load_digits()
            table = np.column_stack([digits.data, digits.target]).astype(np.int64)
        features = table[:, :-1].astype(np.uint8).reshape(-1, *spec.input_shape)
        return RawData(features, np.ascontiguousarray(table[:, -1]))


def _packaged_table() -> Path | None:
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return path if path.is_file() else None
