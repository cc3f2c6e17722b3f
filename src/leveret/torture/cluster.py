"""Cluster: three RabbitMQ nodes of our own that keep quorum queues together, and the ways in which they part."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from leveret.core.errors import ConfigError
from leveret.torture.network import Network
from leveret.torture.node import Epmd, Node
from leveret.torture.server import free_port

T = TypeVar("T")
R = TypeVar("R")

#: How links part: one node from both others; the node that leads most queues from both others; all from each other;
#: one does not hear another, which hears it; clients from one node.
Shape = Literal["one apart", "leader apart", "all apart", "one way", "clients cut"]
SHAPES: Final[tuple[Shape, ...]] = get_args(Shape)
#: Two nodes go on without the third.
SIZE: Final = 3

#: Seconds of silence after which a node takes another for gone, give or take a quarter; RabbitMQ's own 60 s would
#: outlast most partitions of a torture.
_SILENCE: Final = 8
#: A node joins the first one, unless it is that one. One that knew of all would wait for them before it starts.
_CONFIG: Final = f"""\
cluster_partition_handling = pause_minority
net_ticktime = {_SILENCE}
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = leveret-1@{{first}}
"""
#: Seconds after which a node is stuck that does not hear most others though nothing is cut. With Erlang 25, `global` of
#: two nodes that meet again can wait for each other for good, and RabbitMQ 3.10's own remedy for that is none there.
#: On 4.0 a node that is healed in the moment in which it notices the cut keeps the others for down: its Mnesia says
#: `running_partitioned_network` until it is started again.
_STUCK: Final = 20.0
#: Seconds in which a node says how it is; it does in half a second, or waits for others that it does not hear.
_ANSWERS: Final = 10.0
#: Seconds between two looks at a cluster.
_LOOK_AGAIN: Final = 0.2
#: Seconds in which a cluster must be whole after all its nodes run; with pause_minority, nodes look once a second.
_PATIENCE: Final = 90.0


class Cluster:
    """Three nodes that form a cluster. In a network they are hosts of their own; else all are on 127.0.0.1.

    A minority pauses itself (`pause_minority`): it ends its clients' connections and takes no more, until it hears most
    nodes again. From RabbitMQ 4.3 on it keeps its clients, and confirms them nothing that goes to a
    quorum queue. In a network a partition loses packets in silence, so nodes take some seconds to notice. On 127.0.0.1
    it is the broker's own means: nodes are given another cookie for each other, so that they refuse each other's
    connections, and those that they have are closed, which they notice at once.

    Everything ends with the process that started it, however that ends, but for the network, which the next one that
    opens removes. All calls block until what they say is so.

    Args:
        folder: an empty one, inside *root*.
        root: as for `Node`.
        network: an open one with three hosts.

    Raises:
        ConfigError: no RabbitMQ is installed.

    Example:
        ```
        with Network(hosts=3) as network:
            cluster = Cluster(folder, network=network)
            cluster.start()
            apart = cluster.cut("leader apart")
            cluster.heal()
            cluster.until_whole()
            cluster.end()
        ```
    """

    def __init__(self, folder: Path, *, root: Path = Path("/"), network: Network | None = None) -> None:
        self._network = network
        self._cookie = secrets.token_hex(16)
        self._parted: set[tuple[int, int]] = set()
        hosts = ["127.0.0.1"] * SIZE if network is None else network.addresses
        entries: list[list[str]] = (
            [[]] * SIZE if network is None else [network.enter(host) for host in range(SIZE)]
        )
        # One for each host. A node looks for the others' at the port of its own host's.
        self._epmds: dict[str, Epmd] = {}
        epmd_port = free_port()
        nodes = []
        for number, (host, enter) in enumerate(zip(hosts, entries, strict=True), 1):
            own = folder / f"node-{number}"
            own.mkdir()
            epmd = self._epmds.setdefault(
                host, Epmd(own, root=root, address=host, enter=enter, port=epmd_port)
            )
            node = Node(
                own, root=root, address=host, enter=enter, name=f"leveret-{number}", cookie=self._cookie, epmd=epmd,
                config=_CONFIG.format(first=hosts[0]),
            )  # fmt: skip
            nodes.append(node)
        #: In the order of their numbers.
        self.nodes: Final = tuple(nodes)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each node."""
        return [(node.host, node.port) for node in self.nodes]

    @property
    def url(self) -> str:
        """The address of the whole cluster: `amqp://` with all its nodes."""
        return "amqp://guest:guest@" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes in which it can be cut: all in a network.

        On 127.0.0.1 nodes cannot part one way, for they speak both ways on one connection; and clients are cut from a
        node by a proxy.
        """
        return SHAPES if self._network is not None else ("one apart", "leader apart", "all apart")

    def start(self) -> None:
        """Start all nodes, on the data that is there, and wait until they are whole."""
        if (self.nodes[0].folder / "data").exists():
            _all(Node.start, self.nodes)
        else:
            # The first one finds nobody, and the others find it.
            self.nodes[0].start()
            _all(Node.start, self.nodes[1:])
        self.until_whole()

    def end(self) -> None:
        """Kill all that was started for it."""
        for node in self.nodes:
            node.end()
        for epmd in self._epmds.values():
            epmd.end()

    def leaders(self) -> dict[tuple[str, str], int]:
        """Which node leads each quorum queue that has a leader, by virtual host and name.

        Raises:
            RuntimeError: no node answers.
        """
        names = {node.name: index for index, node in enumerate(self.nodes)}
        return {
            (str(queue["vhost"]), str(queue["name"])): names[str(queue["leader"])]
            for queue in self._quorum_queues()
            if queue["leader"] in names
        }

    def cut(self, shape: Shape, node: int = 0) -> int:
        """Part the nodes, until `heal`. A node that is started meanwhile on 127.0.0.1 knows nothing of it.

        Args:
            shape: in which way, one of `shapes`.
            node: the one that stands apart, or that the next one does not hear.

        Returns:
            That node. For `leader apart` it is the one that leads most quorum queues.

        Raises:
            ConfigError: it cannot be cut in that shape here.
        """
        if shape not in self.shapes:
            raise ConfigError(
                f"a cluster on 127.0.0.1 cannot part as {shape!r}, only as {', '.join(self.shapes)}: give it a network"
            )
        if shape == "leader apart":
            counted = Counter(self.leaders().values())
            node = max(range(SIZE), key=lambda index: counted[index])
        others = [index for index in range(SIZE) if index != node]
        if self._network is None:
            pairs = [(node, other) for other in others]
            self._part([*pairs, (others[0], others[1])] if shape == "all apart" else pairs)
            return node
        match shape:
            case "one apart" | "leader apart":
                self._lose((node, other) for other in others)
                self._lose((other, node) for other in others)
            case "all apart":
                self._lose((one, other) for one in range(SIZE) for other in range(SIZE) if one != other)
            case "one way":
                self._lose([(node, (node + 1) % SIZE)])
            case "clients cut":
                self._lose([(node, None), (None, node)])
        return node

    def heal(self) -> None:
        """Undo what was cut. The nodes find each other some seconds later: see `until_whole`."""
        if self._network is not None:
            self._network.heal()
            return
        self._show(self._cookie, self._parted)
        self._parted.clear()

    def until_whole(self, seconds: float = _PATIENCE) -> None:
        """Wait until every node runs and hears the others, and every quorum queue has a leader and all its members.

        A node whose own recovery from a partition hangs is killed and started again, as its operator would.

        Args:
            seconds: to wait at most.

        Raises:
            RuntimeError: it is not in time, or none of its nodes runs; with what is missing.
        """
        begun = time.monotonic()
        mended_at = begun
        while missing := self._missing():
            now = time.monotonic()
            if not any(node.runs for node in self.nodes):
                raise RuntimeError(f"the cluster has ended: {missing}")
            if now > begun + seconds:
                raise RuntimeError(f"the cluster is not whole after {seconds:g} s: {missing}")
            if now > mended_at + _STUCK:
                self._restart_stuck()
                mended_at = time.monotonic()
            time.sleep(_LOOK_AGAIN)

    def _restart_stuck(self) -> None:
        for node in self.nodes:
            if node.runs and len(_hears(node)) <= SIZE // 2:
                node.kill()
                node.start()

    def _missing(self) -> str:
        """What it lacks of being whole; empty when it is."""
        names = {node.name for node in self.nodes}
        for node, heard in zip(self.nodes, _all(_hears, self.nodes), strict=True):
            if heard != names:
                return f"{node.name} hears {', '.join(sorted(heard)) or 'nobody, it is down'}"
        try:
            for queue in self._quorum_queues():
                if not queue["leader"]:
                    return f"queue {queue['name']} has no leader"
                if set(queue["online"]) != set(queue["members"]):
                    return f"of queue {queue['name']} only {', '.join(queue['online'])} are there"
        except RuntimeError as error:
            return str(error)
        return ""

    def _lose(self, pairs: Iterable[tuple[int | None, int | None]]) -> None:
        if self._network is None:
            raise ConfigError("packets are lost in a network only")
        for sender, receiver in pairs:
            self._network.lose(sender=sender, receiver=receiver)

    def _part(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Have the nodes of each pair refuse each other, and end the connections that they have."""
        self._parted.update(pairs)
        self._show("of-another-cluster", self._parted)

    def _show(self, cookie: str, pairs: Iterable[tuple[int, int]]) -> None:
        """From now on have the first node of each pair show, and expect, that cookie when it meets the second."""
        meets: dict[int, list[str]] = {}
        for one, other in pairs:
            meets.setdefault(one, []).append(f"'{self.nodes[other].name}'")
        # One expression for all that a node parts from: one that is without some of the others, even for a moment, is
        # half parted, and then those pause as well that are not meant.
        expressions = {
            one: f"[erlang:set_cookie(Node, '{cookie}') || Node <- [{', '.join(others)}]], "
            f"[erlang:disconnect_node(Node) || Node <- [{', '.join(others)}]]."
            for one, others in meets.items()
        }
        _all(lambda one: self.nodes[one].evaluate(expressions[one]), expressions)

    def _quorum_queues(self) -> list[dict[str, Any]]:
        """Of each quorum queue its `vhost`, `name`, `leader`, `members` and `online` members.

        As a node sees them that hears most nodes; one that is alone may show what was.
        """
        heard = zip(self.nodes, _all(_hears, self.nodes), strict=True)
        node = next((node for node, names in heard if len(names) > SIZE // 2), None)
        if node is None:
            raise RuntimeError("no node of the cluster hears most of them")
        columns = ("name", "type", "leader", "members", "online")
        return [
            queue | {"vhost": vhost["name"]}
            for vhost in _table(node, "list_vhosts", "name")
            for queue in _table(node, "list_queues", "--vhost", vhost["name"], *columns)
            if queue["type"] == "quorum"
        ]


def _hears(node: Node) -> set[str]:
    """The names of the nodes that it hears, and its own; none where RabbitMQ itself is down or has paused itself."""
    try:
        said = node.ctl("cluster_status", "--formatter", "json", seconds=_ANSWERS)
    except RuntimeError:
        return set()
    return set(json.loads(said)["running_nodes"])


def _table(node: Node, *command: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(node.ctl(*command, "--formatter", "json", seconds=_ANSWERS))
    return rows


def _all(do: Callable[[T], R], each: Iterable[T]) -> list[R]:
    """Do it for each at the same time."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(do, each))
