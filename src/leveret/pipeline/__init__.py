"""The pipeline: what happens to one message, from its delivery to its ack."""
