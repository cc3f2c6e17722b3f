from __future__ import annotations

import uuid

from leveret.runtime.world import random_uuid


def test_an_id_is_a_uuid_of_version_4_in_its_usual_writing():
    for _ in range(200):
        id = random_uuid()
        read = uuid.UUID(id)
        assert str(read) == id
        assert (read.version, read.variant) == (4, uuid.RFC_4122)


def test_every_free_bit_of_an_id_is_random():
    ids = [uuid.UUID(random_uuid()).int for _ in range(200)]
    always = ids[0]
    ever = 0
    for id in ids:
        always &= id
        ever |= id
    # Six bits are given: version 0100 and variant 10, of which two are ones and four are noughts.
    assert always == 0x4000_8000_0000_0000_0000
    assert ~ever & (2**128 - 1) == 0xB000_4000_0000_0000_0000
    assert len(set(ids)) == 200
