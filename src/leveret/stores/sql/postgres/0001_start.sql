-- What waits, what died, who holds a lease, what people asked for, and how often a flagged delivery was started.
-- Everything lies in a schema of leveret's own, which the connection's search_path names.
-- Times are epoch seconds. Texts compare byte by byte, whatever the database's language is.
-- Texts that name things (keys, ids, queues) have what PostgreSQL's texts cannot hold (NUL, lone surrogates) escaped with a backslash.

-- The clock that judges. In one place, so that tests can move it.
CREATE FUNCTION epoch_now() RETURNS double precision LANGUAGE sql VOLATILE
    AS 'SELECT extract(epoch FROM pg_catalog.clock_timestamp())::double precision';

CREATE TABLE schema_version (version integer NOT NULL);

CREATE TABLE retry (
    namespace       text COLLATE "C"  NOT NULL,
    key             text COLLATE "C"  NOT NULL,
    failure         bigint            NOT NULL,
    state           text COLLATE "C"  NOT NULL,  -- waiting, blocked, held
    due_at          double precision  NOT NULL,
    try_at          double precision  NOT NULL,  -- when it may be tried: due_at, later where postponed, Infinity where held
    queue           text COLLATE "C"  NOT NULL,
    state_reason    text COLLATE "C"  NOT NULL,
    kind            text COLLATE "C"  NOT NULL,
    exchange        text COLLATE "C"  NOT NULL,
    routing_key     text COLLATE "C"  NOT NULL,
    through_exchange boolean          NOT NULL,
    worker          text COLLATE "C"  NOT NULL,
    type            text COLLATE "C"  NOT NULL,
    message_id      text COLLATE "C",
    retry_id        text COLLATE "C"  NOT NULL,
    attempt         bigint            NOT NULL,
    max_attempts    bigint            NOT NULL,
    counted         boolean           NOT NULL,
    reason          text COLLATE "C"  NOT NULL,
    reason_folded   text COLLATE "C"  NOT NULL,  -- for searches in any case, by Unicode's rules, which are not the database's
    error           text COLLATE "C"  NOT NULL,
    host            text COLLATE "C"  NOT NULL,
    first_failed_at double precision  NOT NULL,
    failed_at       double precision  NOT NULL,
    size            bigint            NOT NULL,
    traceback       text COLLATE "C"  NOT NULL,
    properties      bytea             NOT NULL,
    body            bytea             NOT NULL,
    PRIMARY KEY (namespace, key)
) WITH (
    -- Rows come and go all the time, at one end of the index: what was deleted there should not be walked over for long.
    autovacuum_vacuum_scale_factor = 0.02
);
-- What is due, and listings in that order. It holds all that scheduling needs.
CREATE INDEX retry_due ON retry (namespace, try_at, key) INCLUDE (failure, queue, size);
CREATE INDEX retry_blocked ON retry (namespace, queue) WHERE state = 'blocked';
-- People name a message by an ending of its id.
CREATE INDEX retry_id_ending ON retry ("right"(retry_id, 6));
CREATE INDEX retry_message_ending ON retry ("right"(message_id, 6)) WHERE message_id IS NOT NULL;

CREATE TABLE dead_letter (
    namespace       text COLLATE "C"  NOT NULL,
    id              text COLLATE "C"  NOT NULL,
    state           text COLLATE "C"  NOT NULL,  -- dead, claimed, replayed, discarded
    died_at         double precision  NOT NULL,
    replay_id       text COLLATE "C"  NOT NULL,  -- the replay that has claimed it, empty where none has
    fingerprint     text COLLATE "C"  NOT NULL,
    ending          text COLLATE "C"  NOT NULL,
    worker          text COLLATE "C"  NOT NULL,
    queue           text COLLATE "C"  NOT NULL,
    exchange        text COLLATE "C"  NOT NULL,
    routing_key     text COLLATE "C"  NOT NULL,
    type            text COLLATE "C"  NOT NULL,
    message_id      text COLLATE "C",
    retry_id        text COLLATE "C"  NOT NULL,
    attempts        bigint            NOT NULL,
    failure         bigint            NOT NULL,
    reason          text COLLATE "C"  NOT NULL,
    reason_folded   text COLLATE "C"  NOT NULL,
    error           text COLLATE "C"  NOT NULL,
    host            text COLLATE "C"  NOT NULL,
    first_failed_at double precision  NOT NULL,
    first_letter    text COLLATE "C"  NOT NULL,
    rpc             boolean           NOT NULL,
    size            bigint            NOT NULL,
    replays         text COLLATE "C"  NOT NULL,  -- JSON in plain ASCII: a list of {at, replay_id, to, outcome}
    traceback       text COLLATE "C"  NOT NULL,
    properties      bytea             NOT NULL,
    body            bytea             NOT NULL,
    PRIMARY KEY (namespace, id)
);
CREATE INDEX dead_letter_listing ON dead_letter (namespace, state, died_at, id);
CREATE INDEX dead_letter_claimed ON dead_letter (replay_id, died_at, namespace, id) WHERE state = 'claimed';
CREATE INDEX dead_letter_id_ending ON dead_letter ("right"(id, 6));
CREATE INDEX dead_letter_message_ending ON dead_letter ("right"(message_id, 6)) WHERE message_id IS NOT NULL;

CREATE TABLE lease (
    name    text COLLATE "C"  NOT NULL PRIMARY KEY,
    holder  text COLLATE "C"  NOT NULL,  -- empty where it was released
    term    bigint            NOT NULL,
    expires double precision  NOT NULL,
    -- Makes the term part of a key. Whoever acts under a term locks the row with FOR KEY SHARE: a renewal, which changes
    -- no key, never waits for work; a take-over, which raises the term, waits until what goes on under the old one is over.
    UNIQUE (name, term)
);

CREATE TABLE act (
    id          text COLLATE "C"  NOT NULL PRIMARY KEY,
    number      bigint            NOT NULL GENERATED ALWAYS AS IDENTITY,
    namespace   text COLLATE "C"  NOT NULL,
    verb        text COLLATE "C"  NOT NULL,
    arguments   text COLLATE "C"  NOT NULL,  -- JSON in plain ASCII: an object
    asked_at    double precision  NOT NULL,
    report      text COLLATE "C",            -- JSON in plain ASCII: {by, asked, done, notes, finished}
    finished_at double precision
);
CREATE INDEX act_asked ON act (namespace, asked_at, number) WHERE finished_at IS NULL;
CREATE INDEX act_finished ON act (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE start_count (
    namespace text COLLATE "C"  NOT NULL,
    queue     text COLLATE "C"  NOT NULL,
    message   text COLLATE "C"  NOT NULL,
    starts    bigint            NOT NULL,
    PRIMARY KEY (namespace, queue, message)
);
