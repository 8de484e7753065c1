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
    validation_size
        Rows held to validate on; None where clients have none.
    """

    client_id: int
    train_size: int
    test_size: int
    num_classes: int
    class_counts: tuple[int, ...]
    validation_size: int | None = None


def partition_table(data: FederatedData) -> list[PartitionRow]:
    """Return the partition table, one row per client."""
    parts = data.partition
    kept_sizes: list[int | None] = [None] * data.num_clients
    if parts.validation:
        kept_sizes = [len(rows) for rows in parts.validation]
    columns = zip(parts.train, parts.test, data.class_counts(), kept_sizes, strict=True)
    return [
        PartitionRow(
            k, len(train), len(test), int((counts > 0).sum()), tuple(counts.tolist()), kept
        )
        for k, (train, test, counts, kept) in enumerate(columns)
    ]
