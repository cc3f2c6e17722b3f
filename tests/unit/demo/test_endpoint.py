from __future__ import annotations

import asyncio

import httpx
import pytest

from leveret.demo.endpoint import Endpoint, Request


@pytest.fixture
async def endpoint():
    async with Endpoint() as one:
        yield one


@pytest.fixture
async def client():
    # trust_env: a proxy of this machine's is none for loopback.
    async with httpx.AsyncClient(trust_env=False, timeout=10) as one:
        yield one


async def test_a_path_is_a_plan_whose_last_answer_stays(endpoint, client):
    url = f"{endpoint.url}/17/503/410/200"
    answers = [(await client.post(url, json={})).status_code for _ in range(4)]
    assert answers == [503, 410, 200, 200]


async def test_each_path_has_a_turn_of_its_own(endpoint, client):
    await client.post(f"{endpoint.url}/1/503/200")
    assert (await client.post(f"{endpoint.url}/2/503/200")).status_code == 503


async def test_429_says_when_to_come_again(endpoint, client):
    answer = await client.post(f"{endpoint.url}/1/429/200")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


async def test_none_reads_the_request_and_never_answers(endpoint, client):
    with pytest.raises(httpx.ReadTimeout):
        await client.post(f"{endpoint.url}/1/none/200", json={"a": 1}, timeout=httpx.Timeout(10, read=0.05))
    assert endpoint.answers == {"none": 1}
    assert (await client.post(f"{endpoint.url}/1/none/200")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/1", "/1/500", "/favicon.ico"])
async def test_a_path_without_a_plan_is_not_found(endpoint, client, path):
    assert (await client.get(endpoint.url + path)).status_code == 404


async def test_what_was_taken_is_listed_under_the_message_id(endpoint, client):
    for id, path in [("a", "1/200"), ("b", "2/503/200"), ("a", "1/200")]:
        await client.post(f"{endpoint.url}/{path}", headers={"Idempotency-Key": id})
    assert endpoint.taken == {"a": 2}
    assert endpoint.requests[1] == Request("b", "/2/503/200", "503")


async def test_a_hundred_requests_are_answered_side_by_side(endpoint, client):
    slow = [asyncio.create_task(client.post(f"{endpoint.url}/{n}/none")) for n in range(60)]
    quick = [client.post(f"{endpoint.url}/q{n}/200") for n in range(40)]
    assert {answer.status_code for answer in await asyncio.gather(*quick)} == {200}
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


@pytest.mark.parametrize(
    "sent", [b"", b"POST /1/200 HTTP/1.1\r\n", b"\r\n\r\n", b"x" * 100_000, b"POST /1/200"]
)
async def test_a_request_that_breaks_off_or_is_none_leaves_the_endpoint_working(endpoint, client, sent):
    host, port = endpoint.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    if writer.can_write_eof():
        writer.write_eof()
    await reader.read()
    writer.close()
    assert (await client.post(f"{endpoint.url}/1/200")).status_code == 200


async def test_a_port_can_be_named_and_is_free_again_afterwards():
    async with Endpoint() as first:
        port = int(first.url.rpartition(":")[2])
    async with Endpoint(port) as second:
        assert second.url == first.url
