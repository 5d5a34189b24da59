-- The first schema. What a column means is said at the record or event it stands for (kedge/core).

-- Transactions counted: see kedge/store/witness.py.
CREATE TABLE transactions (number INTEGER NOT NULL) STRICT;

INSERT INTO transactions VALUES (0);

CREATE TABLE workspaces (
    id TEXT PRIMARY KEY NOT NULL,
    path TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    base INTEGER NOT NULL,
    -- The log holds floor < position <= head. The hashes are those of the entries at floor and head, so that the first
    -- entry left after a trim and the last one of all can be checked like any other.
    floor INTEGER NOT NULL,
    floor_hash BLOB NOT NULL,
    head INTEGER NOT NULL,
    head_hash BLOB NOT NULL
) STRICT;

CREATE TABLE log (
    workspace_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    run_id TEXT,
    payload BLOB NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (workspace_id, position)
) STRICT, WITHOUT ROWID;

-- A Run ends once, whatever the code above believes. The session is part of the key because a run_id is free again
-- when its session is deleted: without it, a Run that takes the id anew could never end.
CREATE UNIQUE INDEX log_one_end ON log (workspace_id, run_id, session_id) WHERE kind = 'RunEnded';

CREATE TABLE sessions (
    id TEXT PRIMARY KEY NOT NULL,
    workspace_id TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX sessions_by_update ON sessions (workspace_id, updated_at DESC, id);

CREATE TABLE lanes (
    session_id TEXT PRIMARY KEY NOT NULL,
    workspace_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    next_seq INTEGER NOT NULL,
    mark INTEGER NOT NULL
) STRICT;

CREATE TABLE runs (
    workspace_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    state TEXT NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (workspace_id, run_id)
) STRICT;

CREATE INDEX runs_by_session ON runs (session_id, seq);
CREATE INDEX runs_live ON runs (workspace_id, session_id, seq) WHERE state <> 'ended';

-- Apart from the Run: a prompt may hold megabytes of attachments, and a Run's record is put with each of its Steps.
CREATE TABLE prompts (
    workspace_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    prompt BLOB NOT NULL,
    PRIMARY KEY (workspace_id, run_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
    -- The order in which messages were first put.
    ordinal INTEGER PRIMARY KEY NOT NULL,
    workspace_id TEXT NOT NULL,
    id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    role TEXT NOT NULL,
    parts BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    UNIQUE (workspace_id, id)
) STRICT;

CREATE INDEX messages_by_session ON messages (session_id, ordinal);

CREATE TABLE message_tails (
    message INTEGER NOT NULL, -- its ordinal
    number INTEGER NOT NULL,
    part INTEGER NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (message, number)
) STRICT, WITHOUT ROWID;

-- Given the words of a message as kedge/store/words.py has them, not its text: lower case, separated by spaces. For
-- that input this tokeniser does nothing but cut at the spaces. Only which message holds which word is kept.
CREATE VIRTUAL TABLE message_words USING fts5 (
    words,
    content = '',
    contentless_delete = 1,
    detail = 'none',
    tokenize = "ascii tokenchars '_'"
);
