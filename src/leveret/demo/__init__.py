"""The demo: a flaky endpoint, webhooks for it, a retry worker that dies half-way, and a ledger that misses nothing."""
