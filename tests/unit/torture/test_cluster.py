"""Which links each shape of a partition cuts: counted, on no network and with no broker that runs."""

from __future__ import annotations

from itertools import permutations

import pytest
from tests.rabbitmq_node import ROOT, node_folder

from leveret.core.errors import ConfigError
from leveret.torture.cluster import SHAPES, SIZE, Cluster

EVERYBODY = set(permutations(range(SIZE), 2))
#: (sender, receiver), None for clients, where node 1 is the one that stands apart.
LOST = {
    "one apart": {(0, 1), (1, 0), (1, 2), (2, 1)},
    "leader apart": {(0, 2), (2, 0), (1, 2), (2, 1)},
    "all apart": EVERYBODY,
    "one way": {(1, 2)},
    "clients cut": {(1, None), (None, 1)},
}


class Counted:
    """A network that only remembers what it should lose."""

    addresses = ("10.0.0.1", "10.0.0.2", "10.0.0.3")

    def __init__(self):
        self.lost = set()

    def enter(self, host):
        return ["true", str(host)]

    def lose(self, *, sender, receiver):
        self.lost.add((sender, receiver))

    def heal(self):
        self.lost.clear()


@pytest.fixture
def network():
    return Counted()


@pytest.fixture
def cluster(network, monkeypatch):
    with node_folder() as folder:
        cluster = Cluster(folder, root=ROOT, network=network)
        monkeypatch.setattr(cluster, "leaders", lambda: {("/", "a"): 0, ("/", "b"): 2, ("/", "c"): 2})
        yield cluster


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_cuts_its_links_and_no_other_and_heals_them_all(cluster, network, shape):
    assert cluster.cut(shape, 1) == (2 if shape == "leader apart" else 1)
    assert network.lost == LOST[shape]
    cluster.heal()
    assert not network.lost


def test_on_one_address_a_shape_that_cannot_be_had_is_refused_by_name():
    with node_folder() as folder:
        cluster = Cluster(folder, root=ROOT)
        assert cluster.shapes == ("one apart", "leader apart", "all apart")
        with pytest.raises(
            ConfigError, match="cannot part as 'one way', only as one apart, leader apart, all apart"
        ):
            cluster.cut("one way")


def test_the_address_of_a_cluster_names_all_its_nodes(cluster):
    ports = [node.port for node in cluster.nodes]
    assert cluster.url == "amqp://guest:guest@10.0.0.1:{},10.0.0.2:{},10.0.0.3:{}".format(*ports)
    assert len({node.name for node in cluster.nodes}) == SIZE
