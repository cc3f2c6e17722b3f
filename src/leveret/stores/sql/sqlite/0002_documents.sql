-- Documents of the one-at-a-time interface (DocumentStoreInterface), as JSON text. Ids lie as other names do: TEXT, or BLOB.

CREATE TABLE document (
    collection TEXT NOT NULL,
    id         TEXT NOT NULL,
    body       TEXT NOT NULL,
    PRIMARY KEY (collection, id)
);
