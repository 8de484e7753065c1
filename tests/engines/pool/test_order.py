"""Who answers which message: worker processes, or this one."""

from collections import deque

from flwr.app import Message, RecordDict

from fedsuite.engines.pool.workers import WorkerPool
from fedsuite.messages.records import HELLO
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import digits_experiment


class Scripted:
    """In place of a process: holds messages until it is asked for replies."""

    def __init__(self, number, sent):
        self.number = number
        self.messages = deque()
        self.sent = sent

    def send(self, index, message, states, known):
        self.sent.append(index)
        self.messages.append((index, message))

    def take(self, store, failures):
        return self.messages.popleft()

    def stop(self):
        pass


class Turns:
    """In place of the lines: says which of the scripted workers have a reply."""

    def __init__(self, choose):
        self.choose = choose

    def poll(self, timeout):
        return [(worker.number, 1) for worker in self.choose(timeout)]


def scripted(workers, choose) -> WorkerPool:
    pool = WorkerPool(digits_experiment(), "run", 4, 0, None)
    pool._workers = list(workers)
    pool._lines = {worker.number: worker for worker in workers}
    pool._poll = Turns(choose)
    return pool


def greetings(count: int) -> list[Message]:
    return [Message(RecordDict(), 1000, HELLO) for _ in range(count)]


def test_no_message_is_far_ahead_of_the_oldest_without_a_reply():
    sent, ahead = [], []
    slow, fast = Scripted(7, sent), Scripted(8, sent)

    def choose(timeout):
        if fast.messages:
            return [fast]
        if timeout is None:
            ahead.append(max(sent) - slow.messages[0][0])
            return [slow]
        return []

    pool = scripted([slow, fast], choose)

    def here(message):
        sent.append(messages.index(message))
        return sent[-1]

    with flower_identity():
        messages = greetings(60)
        replies = list(pool.answers(messages, here))
    assert sorted(sent) == list(range(60)) and len(replies) == 60
    # Three processes, four messages each: while the slow one has its first, others go on.
    assert ahead[0] == 12 and max(ahead) == 12
    pool.close()


def order_of(count: int, num_workers: int) -> list[str]:
    """Return who begins each message, where all take as long: one turn each."""
    order, workers = [], []

    class Named(Scripted):
        def send(self, index, message, states, known):
            super().send(index, message, states, known)
            order.append(f"{self.number}:{index}")

    def choose(timeout):
        # Whoever has a message has answered it when this process has answered one.
        nonlocal answered
        ready = [w for w in workers if w.messages] if answered or timeout is None else []
        answered = False
        return ready

    def here(message):
        nonlocal answered
        answered = True
        order.append(f"here:{messages.index(message)}")
        return message

    answered = False
    workers += [Named(number, order) for number in range(1, num_workers + 1)]
    for worker in workers:
        worker.sent = []
    pool = scripted(workers, choose)
    with flower_identity():
        messages = greetings(count)
        assert len(list(pool.answers(messages, here))) == count
    pool.close()
    return order


def test_this_process_answers_when_the_others_have_enough():
    assert order_of(1, 1) == ["1:0"]
    assert order_of(2, 1) == ["1:0", "here:1"]
    assert order_of(3, 1) == ["1:0", "1:1", "here:2"]
    assert order_of(4, 1) == ["1:0", "1:1", "here:2", "here:3"]
    # Five each, and the last two begin together.
    expected = "1:0 1:1 here:2 1:3 here:4 1:5 here:6 1:7 here:8 here:9"
    assert order_of(10, 1) == expected.split()
    assert order_of(5, 3) == ["1:0", "2:1", "3:2", "1:3", "here:4"]


def test_a_client_stays_with_the_process_that_has_its_data():
    held_by = {}
    sent = []
    worker = Scripted(1, sent)
    pool = scripted([worker], lambda timeout: [worker] if timeout is None else [])

    def here(message):
        held_by[message.metadata.dst_node_id] = "here"
        return message

    def round_of(nodes):
        held_by.clear()
        sent.clear()
        messages = [Message(RecordDict(), node, HELLO) for node in nodes]
        list(pool.answers(messages, here))
        return [nodes[index] for index in sent], sorted(held_by)

    with flower_identity():
        theirs, ours = round_of([1000, 1001, 1002])
        assert (theirs, ours) == ([1000, 1001], [1002])
        assert round_of([1002, 1001, 1000]) == ([1001, 1000], [1002])
        # Nobody waits for the process of a client's data.
        assert round_of([1000, 1001]) == ([1000], [1001])
    pool.close()
