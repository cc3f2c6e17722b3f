"""`leveret doctor` and `leveret status` look at RabbitMQ."""

from __future__ import annotations


def found(ended, level):
    return [f"{each['about']}: {each['text']}" for each in ended.records if each["level"] == level]


def test_doctor_publishes_and_consumes_looks_at_queues_and_leaves_nothing_behind(shop):
    assert shop("topology", "apply").code == 0
    ended = shop("doctor", "--json")
    assert ended.code == 0
    assert found(ended, "fault") == []
    (broker,) = [each for each in found(ended, "ok") if each.startswith("broker: ")]
    assert broker.startswith("broker: RabbitMQ ")
    assert broker.endswith(" ms away, publishes and consumes")
    consumers = [each for each in found(ended, "warn") if each.startswith("consumer: ")]
    assert [shop.queue(name) in each for name, each in zip(("retry", "events.dlq"), consumers, strict=True)]
    assert any(each.startswith("policies: not checked") for each in found(ended, "note"))
    assert ".doctor." not in shop.node.ctl("list_queues", "name")


def test_doctor_warns_of_a_delivery_limit_below_max_deliveries(shop):
    code = (shop.folder / "shop.py").read_text()
    limit = 'queue_type="quorum", queue_arguments={"x-delivery-limit": 3, "x-dead-letter-exchange": "x"}'
    (shop.folder / "shop.py").write_text(code.replace('"job",', f'"job", {limit},'))
    ended = shop("doctor", "--json")
    assert (
        f"queue: {shop.queue('charge')}: its delivery limit 3 is below max_deliveries 5; the broker would take a "
        "message away first. Set x-delivery-limit to 6 or more"
    ) in found(ended, "warn")


def test_a_queue_that_loses_messages_and_a_permission_that_is_missing_are_faults(shop):
    shop.channel.queue_declare(shop.queue("charge"), durable=True, arguments={"x-expires": 600_000})
    shop.node.ctl("add_user", shop.namespace, "geheim")
    shop.node.ctl("set_permissions", shop.namespace, r"\.(charge|doctor\..*)$", ".*", ".*")
    assert shop("topology", "apply", "--broker", shop.node.url).code == 3
    shop.channel.exchange_declare(f"{shop.namespace}.observer", "fanout", durable=True)
    shop.environ["LEVERET_BROKER"] = shop.node.url.replace("guest:guest", f"{shop.namespace}:geheim")
    ended = shop("doctor", "--json")
    assert ended.code == 1
    expires, refused = sorted(found(ended, "fault"), reverse=True)
    assert "x-expires=600000" in expires
    assert f"exchange {shop.namespace}.observer: 403 ACCESS_REFUSED" in refused
    assert "geheim" not in ended.out + ended.err


def test_a_wrong_password_is_told_at_once_in_the_brokers_words_and_never_shown(shop):
    shop.environ["LEVERET_BROKER"] = shop.node.url.replace("guest:guest", "guest:geheim")
    ended = shop("doctor", "--json")
    assert ended.code == 1
    assert "Login was refused" in found(ended, "fault")[0]
    for command in (["run"], ["publish", "job"], ["topology", "check"]):
        told = shop(*command)
        assert told.code == 3
        assert 'does not let "guest" in on vhost "/": ACCESS_REFUSED' in told.err
        assert "rabbitmqctl add_user shop" in told.err
        assert "geheim" not in told.out + told.err + ended.out + ended.err


def test_status_and_dead_list_say_how_many_letters_lie_unkept_and_who_consumes(shop):
    assert shop("run", "--until-idle").code == 0
    shop.channel.basic_publish("", shop.queue("events.dlq"), b"of another program")
    ended = shop("status", "--json")
    assert ended.code == 1
    (standing,) = ended.records
    assert (standing["unkept"], standing["broker_takes_messages"]) == (1, True)
    assert [each["consumers"] for each in standing["queues"]] == [0, 0]
    assert "leveret keeper" in standing["faults"][0]
    assert (
        f"1 more in {shop.queue('events.dlq')}, not stored yet: leveret keeper." in shop("dead", "list").out
    )

    running = shop.start("run")
    running.wait_for("Ready")
    told = shop("status")
    assert told.code == 0
    assert "takes messages, and is not blocked" in told.out
    assert running.stop() == 0
    assert "1 of 1 dead" in shop("dead", "list").out


def test_a_broker_that_is_short_of_memory_is_told_as_blocked(shop):
    assert shop("run", "--until-idle").code == 0
    shop.node.alarm(on=True)
    try:
        status, doctor = shop("status"), shop("doctor", "--json")
    finally:
        shop.node.alarm(on=False)
    assert (status.code, doctor.code) == (1, 1)
    assert "blocked by its memory or disk alarm" in status.out
    assert "blocked by its memory or disk alarm" in found(doctor, "fault")[0]
