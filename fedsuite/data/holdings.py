"""Table of the clients' rows."""

from dataclasses import dataclass

from fedsuite.data.federated import FederatedData


@dataclass(frozen=True)
class PartitionRow:
    """One client's line of the partition table.

    Parameters
    ----------
    client_id
        Number of the client, from 0.
    train_size, test_size
        Rows held.
    num_classes
        Classes with at least one training row.
    class_counts
        Training rows of each class.
    """

    client_id: int
    train_size: int
    test_size: int
    num_classes: int
    class_counts: tuple[int, ...]


def partition_table(data: FederatedData) -> list[PartitionRow]:
    """Return the partition table, one row per client."""
    return [
        PartitionRow(
            k, len(train), len(test), int((counts > 0).sum()), tuple(counts.tolist())
        )
        for k, (train, test, counts) in enumerate(
            zip(data.partition.train, data.partition.test, data.class_counts(), strict=True)
        )
    ]
