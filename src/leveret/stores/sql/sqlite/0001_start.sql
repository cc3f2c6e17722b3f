-- What waits, what died, who holds a lease, what people asked for, and how often a flagged delivery was started.
-- Times are REAL: epoch seconds. Bodies and property sections are BLOB, and come last, so that listings need not read past them.
-- Texts that name things (keys, ids, queues, exchanges) are TEXT, or BLOB where they hold what TEXT cannot: NUL, lone surrogates.

CREATE TABLE retry (
    namespace       TEXT    NOT NULL,
    key             TEXT    NOT NULL,
    failure         INTEGER NOT NULL,
    state           TEXT    NOT NULL,  -- waiting, blocked, held
    due_at          REAL    NOT NULL,
    try_at          REAL    NOT NULL,  -- when it may be tried: due_at, later where postponed, Infinity where held
    queue           TEXT    NOT NULL,
    state_reason    TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    exchange        TEXT    NOT NULL,
    routing_key     TEXT    NOT NULL,
    through_exchange INTEGER NOT NULL,
    worker          TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    message_id      TEXT,
    retry_id        TEXT    NOT NULL,
    attempt         INTEGER NOT NULL,
    max_attempts    INTEGER NOT NULL,
    counted         INTEGER NOT NULL,
    reason          TEXT    NOT NULL,
    error           TEXT    NOT NULL,
    host            TEXT    NOT NULL,
    first_failed_at REAL    NOT NULL,
    failed_at       REAL    NOT NULL,
    size            INTEGER NOT NULL,
    traceback       TEXT    NOT NULL,
    properties      BLOB    NOT NULL,
    body            BLOB    NOT NULL,
    PRIMARY KEY (namespace, key)
);
-- What is due, and listings in that order. It holds all that scheduling needs, so a round reads no row.
CREATE INDEX retry_due ON retry (namespace, try_at, key, failure, queue, size);
CREATE INDEX retry_blocked ON retry (namespace, queue) WHERE state = 'blocked';
-- People name a message by an ending of its id.
CREATE INDEX retry_id_ending ON retry (substr(retry_id, -6));
CREATE INDEX retry_message_ending ON retry (substr(message_id, -6)) WHERE message_id IS NOT NULL;

CREATE TABLE dead_letter (
    namespace       TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    state           TEXT    NOT NULL,  -- dead, claimed, replayed, discarded
    died_at         REAL    NOT NULL,
    replay_id       TEXT    NOT NULL,  -- the replay that has claimed it, empty where none has
    fingerprint     TEXT    NOT NULL,
    ending          TEXT    NOT NULL,
    worker          TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    exchange        TEXT    NOT NULL,
    routing_key     TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    message_id      TEXT,
    retry_id        TEXT    NOT NULL,
    attempts        INTEGER NOT NULL,
    failure         INTEGER NOT NULL,
    reason          TEXT    NOT NULL,
    error           TEXT    NOT NULL,
    host            TEXT    NOT NULL,
    first_failed_at REAL    NOT NULL,
    first_letter    TEXT    NOT NULL,
    rpc             INTEGER NOT NULL,
    size            INTEGER NOT NULL,
    replays         TEXT    NOT NULL,  -- JSON: a list of {at, replay_id, to, outcome}
    traceback       TEXT    NOT NULL,
    properties      BLOB    NOT NULL,
    body            BLOB    NOT NULL,
    PRIMARY KEY (namespace, id)
);
CREATE INDEX dead_letter_listing ON dead_letter (namespace, state, died_at, id);
CREATE INDEX dead_letter_claimed ON dead_letter (replay_id, died_at, namespace, id) WHERE state = 'claimed';
CREATE INDEX dead_letter_id_ending ON dead_letter (substr(id, -6));
CREATE INDEX dead_letter_message_ending ON dead_letter (substr(message_id, -6)) WHERE message_id IS NOT NULL;

CREATE TABLE lease (
    name    TEXT    NOT NULL PRIMARY KEY,
    holder  TEXT    NOT NULL,  -- empty where it was released
    term    INTEGER NOT NULL,
    expires REAL    NOT NULL,  -- by the clock that runs from boot
    ttl     REAL    NOT NULL,  -- what was asked for: an end further away than this is of another boot
    boot    TEXT    NOT NULL   -- which boot, where the system can tell
);

CREATE TABLE act (
    id          TEXT NOT NULL PRIMARY KEY,
    namespace   TEXT NOT NULL,
    verb        TEXT NOT NULL,
    arguments   TEXT NOT NULL,  -- JSON: an object
    asked_at    REAL NOT NULL,
    report      TEXT,           -- JSON: {by, asked, done, notes, finished}
    finished_at REAL
);
CREATE INDEX act_asked ON act (namespace, asked_at) WHERE finished_at IS NULL;
CREATE INDEX act_finished ON act (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE start_count (
    namespace TEXT    NOT NULL,
    queue     TEXT    NOT NULL,
    message   TEXT    NOT NULL,
    starts    INTEGER NOT NULL,
    PRIMARY KEY (namespace, queue, message)
) WITHOUT ROWID;
