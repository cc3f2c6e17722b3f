"""A cluster of three nodes of our own: its quorum queues lose nothing, and it can be parted and made whole again.

Which links a shape cuts is counted in tests/unit/torture, that their packets are lost in tests/torture/test_network.py.
"""

from __future__ import annotations

import re
import time

import pika
import pytest
from pika.exceptions import NackError
from tests.rabbitmq_node import ROOT, node_folder
from tests.torture.test_network import need_networks

from leveret.torture.cluster import SHAPES, SIZE, Cluster
from leveret.torture.network import Network


@pytest.fixture(scope="module")
def started():
    need_networks()
    with Network(hosts=SIZE) as network, node_folder() as folder:
        cluster = Cluster(folder, root=ROOT, network=network)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()


@pytest.fixture
def cluster(started):
    """The cluster. A test leaves it whole; one that fails, at least with nothing cut and all nodes up."""
    yield started
    started.heal()
    for node in started.nodes:
        if not node.runs:
            node.start()


class Client:
    """One that publishes into a quorum queue by one node, until it has a confirm."""

    def __init__(self, cluster, node, queue):
        self._connection = pika.BlockingConnection(pika.URLParameters(cluster.nodes[node].url))
        self._queue = queue
        self._open()
        self._channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})

    def _open(self):
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()

    def publish(self, *words):
        for word in words:
            until = time.monotonic() + 60
            while True:
                try:
                    self._channel.basic_publish("", self._queue, word.encode(), mandatory=True)
                    break
                except NackError:
                    # RabbitMQ 3.10 nacks on a channel that knows a leader which is out of reach, and goes on doing so.
                    assert time.monotonic() < until
                    self._channel.close()
                    self._open()

    def take_all(self):
        """The bodies of all messages in the queue."""
        taken = set()
        while (got := self._channel.basic_get(self._queue, auto_ack=True))[0] is not None:
            taken.add(got[2].decode())
        return taken


def connected(node):
    """The names of the nodes that a node is connected to."""
    return set(re.findall(r"leveret-[\d@.]+", node.evaluate("nodes().")))


def test_a_quorum_queue_outlives_the_kill_of_its_leader_with_all_it_has_confirmed(cluster):
    with Client(cluster, 0, "outlives") as client:
        client.publish("1", "2", "3")
    leader = cluster.leaders()["/", "outlives"]
    with Client(cluster, (leader + 1) % SIZE, "outlives") as client:
        cluster.nodes[leader].kill()
        client.publish("4", "5", "6")
        assert cluster.leaders()["/", "outlives"] != leader
        cluster.nodes[leader].start()
        cluster.until_whole()
        assert client.take_all() == {"1", "2", "3", "4", "5", "6"}


def test_while_its_leader_is_apart_most_nodes_go_on_and_nothing_is_lost(cluster):
    with Client(cluster, 0, "goes-on") as client:
        client.publish("1", "2", "3")
    leader = cluster.leaders()["/", "goes-on"]
    with Client(cluster, (leader + 1) % SIZE, "goes-on") as client:
        assert cluster.cut("one apart", leader) == leader
        client.publish("4", "5", "6")
        assert cluster.leaders()["/", "goes-on"] != leader
        cluster.heal()
        cluster.until_whole()
        assert client.take_all() == {"1", "2", "3", "4", "5", "6"}


def test_a_cluster_that_was_parted_in_every_shape_is_whole_again(cluster):
    for shape in SHAPES:
        assert cluster.cut(shape) in range(SIZE)
        cluster.heal()
    cluster.until_whole()


def test_nodes_that_refuse_each_other_are_apart_as_well_and_meet_again(cluster, monkeypatch):
    """The broker's own means, for where no network can be made."""
    monkeypatch.setattr(cluster, "_network", None)
    first, second, third = (node.name for node in cluster.nodes)
    assert cluster.cut("one apart", 2) == 2
    assert [connected(node) for node in cluster.nodes] == [{second}, {first}, set()]
    cluster.heal()
    cluster.until_whole()
    assert [connected(node) for node in cluster.nodes] == [{second, third}, {first, third}, {first, second}]
