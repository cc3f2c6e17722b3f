"""RabbitMQ, on pika's asyncio adapter. The only folder that imports pika.

From the bottom up: `wire` writes frames, `connection` reads them, `address` connects, `channel` makes calls awaitable,
`link` keeps a connection up, `publisher` and `quarantine` see to confirms, `delivery` and `consumer` to what comes in,
`declare` to queues, and `transport` puts them together.
"""
