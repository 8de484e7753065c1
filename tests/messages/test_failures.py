"""What is a failure in a reply, and what an app's own record of that name."""

from flwr.app import ConfigRecord, RecordDict

from fedsuite.messages.records import add_entry, failure_of, split_replies


def test_a_failure_has_its_place_in_the_hosted_layout() -> None:
    content = RecordDict()
    add_entry(content, 3, "no disk", "OSError")
    [entry] = split_replies(content, [3]).values()
    assert failure_of(entry, hosted=True) == ("no disk", "OSError")
    assert failure_of({"error": ConfigRecord({"code": 3})}, hosted=True)


def test_a_node_with_one_client_may_call_a_record_error() -> None:
    own = {"error": ConfigRecord({"reason": "mean errors", "mse": 0.3})}
    assert failure_of(own, hosted=False) is None
    assert failure_of({}, hosted=True) is None
