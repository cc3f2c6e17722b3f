from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from leveret.cli.commands import cli
from leveret.core.errors import ConfigError
from leveret.torture.addresses import Brokers, StoreServer
from leveret.torture.setting import Setting


def setting(**said) -> Setting:
    return Setting(**{"minutes": 2, "seed": 42, **said})


def test_the_command_of_a_setting_makes_the_same_run_again():
    assert setting().command == "leveret torture --minutes 2 --seed 42"
    assert (
        setting(
            every=(5, 40), rate=60, soft=1.0, faults=("cut", "killed"), cluster=True, postgres=True
        ).command
        == 'leveret torture --minutes 2 --seed 42 --every 5-40 --rate 60 --soft 1 --faults "cut,killed" '
        "--cluster --postgres"
    )


def test_the_command_of_a_setting_shows_no_address_and_so_no_password():
    said = setting(broker="amqp://shop:s3cret@rabbit-1", store="postgresql://shop:s3cret@db-1/shop").command

    assert said == "leveret torture --minutes 2 --seed 42 --broker … --store …"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"broker": "amqp://localhost", "cluster": True}, "--broker and --cluster: the one names a broker"),
        ({"store": "sqlite:///a.db", "postgres": True}, "--store and --postgres: the one names a store"),
        ({"broker": "memory://"}, "--broker memory://: expected amqp://…"),
        (
            {"broker": "amqps://shop:s3cret@rabbit-1"},
            r"--broker amqps://shop:\*\*\*@rabbit-1: expected amqp://…",
        ),
        ({"store": "memory://"}, "--store memory://: expected sqlite:///… or postgresql://…"),
        ({"soak": True, "minutes": 15}, "--soak --minutes 15: too short to tell, it takes 16 minutes"),
        ({"beside": Path("/nowhere")}, "scripts/release 0.2.0 /nowhere"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_started(said: dict, told: str):
    with pytest.raises(ConfigError, match=told):
        setting(**said)


def test_what_is_not_ours_is_not_struck():
    ours = setting().has
    theirs = setting(broker="amqp://localhost", store="postgresql://db-1/shop").has

    assert ours == {"node", "classic", "sqlite"}
    assert theirs == {"server"}


def test_no_faults_is_a_plan_too():
    assert setting(faults=("none",)).plan() == []


def test_proxies_stand_in_the_place_of_a_brokers_nodes():
    brokers = Brokers(url="amqp://shop:p%40ss@rabbit-1,rabbit-2:5673/eu")

    assert brokers.addresses == (("rabbit-1", 5672), ("rabbit-2", 5673))
    assert brokers.behind([4001, 4002]) == "amqp://shop:p%40ss@127.0.0.1:4001,127.0.0.1:4002/eu"


def test_a_proxy_stands_in_the_place_of_a_stores_server():
    store = StoreServer(url="postgresql://shop:p%40ss@db-1/shop?schema=leveret")

    assert store.address == ("db-1", 5432)
    assert store.behind(4001) == "postgresql://shop:p%40ss@127.0.0.1:4001/shop?schema=leveret"


@pytest.mark.parametrize("every", ["0", "often", "40-5", "-", "nan", "1-inf"])
def test_seconds_that_are_none_are_refused_with_how_to_write_them(every: str):
    ended = CliRunner().invoke(cli, ["torture", "--every", every])

    assert isinstance(ended.exception, ConfigError)
    assert f"--every {every}: expected seconds, 1 or more, such as 10" in str(ended.exception)


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("name", ["minutes", "rate", "soft", "hard"])
def test_a_number_that_is_none_is_refused_before_anything_is_started(name: str, value: str, tmp_path: Path):
    # Of a share, infinity is out of its bounds already.
    said = {name: float(value)}
    with pytest.raises(ConfigError, match=f"--{name} {value}: expected a number, such as "):
        setting(**said)

    ended = CliRunner().invoke(cli, ["torture", f"--{name}", value, "--report", str(tmp_path / "report")])

    assert ended.exit_code != 0
    assert not (tmp_path / "report").exists()


def test_a_soak_ends_no_process_whose_life_it_is_to_judge():
    def ended(soak: bool) -> set[str]:
        return {fault.target for fault in setting(minutes=60, soak=soak).plan() if fault.kind.ends}

    assert ended(soak=True) <= {"workers-2", "retry-2"}
    assert {"all", "keeper-1", "producer-1"} <= ended(soak=False)


def test_a_soak_must_tell_of_each_kind_of_process_and_of_a_broker_of_our_own():
    kinds = {"workers", "retry", "keeper", "daemon", "producer", "caller"}

    assert setting(minutes=30, soak=True).soaked == kinds | {"broker"}
    assert setting(minutes=30, soak=True, broker="amqp://localhost").soaked == kinds
