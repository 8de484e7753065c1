"""Write Fashion-MNIST with its last 10,000 training images in place of the test part.

    python simulations/fedal/held_out.py DATA NEW

reads ``DATA/fashion_mnist`` and writes ``NEW/fashion_mnist``. Choices by what is scored
there read no test image.
"""

import sys
from pathlib import Path

import pyarrow.parquet as parquet

HELD_OUT = 10_000


def main(data: Path, new: Path) -> None:
    """Write the folder."""
    (train,) = (data / "fashion_mnist").glob("train-*.parquet")
    table = parquet.read_table(train)
    folder = new / "fashion_mnist"
    folder.mkdir(parents=True, exist_ok=True)
    kept = table.num_rows - HELD_OUT
    parquet.write_table(table.slice(0, kept), folder / "train-00000-of-00001.parquet")
    parquet.write_table(table.slice(kept), folder / "test-00000-of-00001.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
