"""`leveret topology check|diff|apply` on RabbitMQ."""

from __future__ import annotations

import re
import shlex


def test_what_is_missing_is_told_and_made_and_then_all_is_well(shop):
    ended = shop("topology", "check")
    assert ended.code == 1
    assert f"queue {shop.queue('charge')} is not there" in ended.out
    assert "RabbitMQ 3." in ended.out or "RabbitMQ 4." in ended.out
    assert shop("topology", "diff").code == 1
    assert [shop.ready(name) for name in ("charge", "retry", "events.dlq")] == [None, None, None]

    ended = shop("topology", "apply")
    assert ended.code == 0
    assert f"made   queue {shop.queue('charge')}" in ended.out
    shop.channel.basic_publish(f"{shop.namespace}.events", "job", b'{"do": "nothing"}')

    assert shop("topology", "check").code == 0
    ended = shop("topology", "diff")
    assert (ended.code, "nothing differs" in ended.out) == (0, True)
    assert "0 made now" in shop("topology", "apply").out
    # It went through the binding that apply has made, and nothing took it away.
    assert shop.ready("charge") == 1


def test_a_queue_of_another_type_is_kept_and_the_steps_change_it_as_they_are_printed(shop):
    shop.channel.queue_declare(shop.queue("charge"), durable=True)
    (shop.folder / "shop.py").write_text(
        (shop.folder / "shop.py").read_text().replace("Leveret()", 'Leveret(queue_type="quorum")')
    )
    assert shop("topology", "apply").code == 0

    ended = shop("topology", "diff")
    assert ended.code == 1
    assert re.search(
        rf"{shop.queue('charge')} +x-queue-type +classic +quorum +kept as it is; leveret topology diff --steps",
        ended.out,
    )
    assert ended.out.count(shop.namespace + ".") == 1

    steps = shop("topology", "diff", "--steps").out
    assert "until this shows 0 messages" in steps
    assert "leveret retries move --worker charge --to QUEUE" in steps
    (delete,) = re.findall(r"rabbitmqctl (delete_queue .*)", steps)
    assert "--if-empty" in delete
    shop.node.ctl(*shlex.split(delete))
    (apply,) = re.findall(r"leveret (topology apply.*)", steps)
    assert shop(*apply.split()).code == 0
    ended = shop("topology", "check", "--json")
    assert (ended.code, ended.out) == (0, "")


def test_a_queue_that_loses_messages_is_refused_before_anything_is_made(shop):
    shop.channel.queue_declare(shop.queue("charge"), durable=True, arguments={"x-message-ttl": 60_000})
    (found,) = [each for each in shop("topology", "check", "--json").records if each["state"] == "unsafe"]
    assert (found["argument"], found["there"], found["here"]) == ("x-message-ttl", 60_000, None)
    ended = shop("topology", "apply")
    assert ended.code == 3
    assert "x-message-ttl=60000" in ended.err
    assert "Nothing was made" in ended.err
    assert shop.ready("retry") is None
    assert shop.ready("charge") == 0
