"""Records that are filled at once, without Flower's check of each entry.

Flower checks the type of each entry that is put into a record, which takes a microsecond
(seen in flwr 1.39, 1.41 and 1.42): most of what a small client's reply costs. Entries that
fedsuite itself made need no check. To delete when Flower fills a record from a mapping in
one step.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)


def filled(record: Record, entries: Mapping[str, Any]) -> Record:
    """Put entries of the right types into a record, and return it."""
    content = record.__dict__.get("_data")
    if type(content) is dict:
        content.update(entries)
        return record
    for name, entry in entries.items():
        record[name] = entry
    return record


def metric_record(metrics: Mapping[str, Any]) -> MetricRecord:
    """Return a record of metrics; Flower raises TypeError for what is no metric."""
    if all(type(value) in (int, float) for value in metrics.values()):
        return filled(MetricRecord(), metrics)
    return MetricRecord(dict(metrics))
