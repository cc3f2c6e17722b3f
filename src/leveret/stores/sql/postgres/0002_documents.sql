-- Documents of the one-at-a-time interface (DocumentStoreInterface), as JSON in plain ASCII. Ids are escaped as other names are.

CREATE TABLE document (
    collection text COLLATE "C"  NOT NULL,
    id         text COLLATE "C"  NOT NULL,
    number     bigint            NOT NULL GENERATED ALWAYS AS IDENTITY,
    body       text COLLATE "C"  NOT NULL,
    PRIMARY KEY (collection, id)
);
-- All of a collection, in the order in which they came.
CREATE INDEX document_order ON document (collection, number);
