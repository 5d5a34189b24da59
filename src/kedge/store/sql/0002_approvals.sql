-- What people are asked and have allowed, and files as they were before a tool changed them.

CREATE TABLE asks (
    -- The order in which they were first put.
    ordinal INTEGER PRIMARY KEY NOT NULL,
    id TEXT NOT NULL UNIQUE,
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    state TEXT NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX asks_by_session ON asks (session_id);
-- The settled ones pile up with the years; those that wait are few and asked for often.
CREATE INDEX asks_pending ON asks (workspace_id, asked_at, ordinal) WHERE state = 'pending';

CREATE TABLE grants (
    ordinal INTEGER PRIMARY KEY NOT NULL,
    id TEXT NOT NULL UNIQUE,
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL, -- empty: for the whole workspace
    record BLOB NOT NULL
) STRICT;

CREATE INDEX grants_by_workspace ON grants (workspace_id, ordinal);

CREATE TABLE file_versions (
    ordinal INTEGER PRIMARY KEY NOT NULL,
    id TEXT NOT NULL UNIQUE,
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    undone INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX file_versions_by_session ON file_versions (session_id, ordinal);

-- Apart from the version, which is put again when it is undone. There is always a row, with NULL for a file that was
-- not there: a row that got lost must not look like that, since undoing would then remove the file.
CREATE TABLE file_contents (
    version INTEGER PRIMARY KEY NOT NULL, -- its ordinal
    content BLOB
) STRICT;

ALTER TABLE messages ADD COLUMN is_summary INTEGER NOT NULL DEFAULT 0;
