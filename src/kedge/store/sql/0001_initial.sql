-- The columns are documented at the records and events that they hold (kedge/core). `ordinal` is the order in which rows
-- were first stored.

-- The number of committed transactions; see kedge/store/head_file.py.
CREATE TABLE transactions (committed INTEGER NOT NULL) STRICT;

INSERT INTO transactions VALUES (0);

CREATE TABLE workspaces (
    id TEXT PRIMARY KEY NOT NULL,
    path TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    base INTEGER NOT NULL,
    -- The log holds floor < position <= head. The hashes of the entries at floor and head allow to check the first entry
    -- after a trim and the last entry like any other.
    floor INTEGER NOT NULL,
    floor_hash BLOB NOT NULL,
    head INTEGER NOT NULL,
    head_hash BLOB NOT NULL
) STRICT;

-- Workspaces whose rows in the other tables are being deleted; see kedge/store/sqlite_removal.py.
CREATE TABLE removed_workspaces (id TEXT PRIMARY KEY NOT NULL) STRICT;

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

-- Enforces that a Run ends once. The session is part of the key because a deleted session frees its run_ids: without it,
-- a new Run with such an id could never end.
CREATE UNIQUE INDEX log_run_ends ON log (workspace_id, run_id, session_id) WHERE kind = 'RunEnded';

CREATE TABLE sessions (
    id TEXT PRIMARY KEY NOT NULL,
    workspace_id TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX sessions_by_update ON sessions (workspace_id, updated_at DESC, id);

-- Sessions whose rows no read returns: deleted ones, until their last row is removed, and copies, until they are complete.
CREATE TABLE hidden_sessions (
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    is_copy INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, session_id)
) STRICT, WITHOUT ROWID;

-- Messages of a session that a rewind removed, by ordinal: no read returns them, and their rows are deleted in slices.
CREATE TABLE cut_messages (
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, session_id, first)
) STRICT, WITHOUT ROWID;

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
    accepted_at INTEGER NOT NULL,
    ended_at INTEGER,
    record BLOB NOT NULL,
    PRIMARY KEY (workspace_id, run_id)
) STRICT;

CREATE INDEX runs_by_session ON runs (session_id, seq);
CREATE INDEX runs_live ON runs (workspace_id, session_id, seq) WHERE state <> 'ended';

-- For statistics; see kedge/core/run_facts.py. Without the columns of an index over times: a query reads the rows in the
-- order of their ends, and each Run pays for an index.
CREATE TABLE run_facts (
    ordinal INTEGER PRIMARY KEY NOT NULL,
    workspace_id TEXT NOT NULL,
    ended_at INTEGER NOT NULL,
    facts BLOB NOT NULL
) STRICT;

CREATE INDEX run_facts_by_workspace ON run_facts (workspace_id);

-- The users; see kedge/core/users.py. Of a token only the digest is stored.
CREATE TABLE users (
    name TEXT PRIMARY KEY NOT NULL,
    role TEXT NOT NULL,
    token_digest TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The actions of users; see kedge/core/audit.py. Without an index over authors: the listing is read rarely, in the order
-- of the rows, and each action would pay for the index.
CREATE TABLE audit (
    ordinal INTEGER PRIMARY KEY NOT NULL,
    workspace_id TEXT NOT NULL,
    author TEXT NOT NULL,
    entry BLOB NOT NULL
) STRICT;

-- Separate from the Run, whose record is rewritten in each Step: a prompt may hold a megabyte of text.
CREATE TABLE prompts (
    workspace_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    prompt BLOB NOT NULL,
    PRIMARY KEY (workspace_id, run_id)
) STRICT, WITHOUT ROWID;

-- The contents of files attached to prompts. Prompts and messages name them by digest.
CREATE TABLE attachments (
    workspace_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, digest)
) STRICT, WITHOUT ROWID;

CREATE TABLE attachment_contents (
    ordinal INTEGER PRIMARY KEY NOT NULL,
    content BLOB NOT NULL
) STRICT;

-- Contents without an attachment: they may have megabytes, and are removed one by one.
CREATE TABLE freed_attachments (ordinal INTEGER PRIMARY KEY NOT NULL) STRICT;

-- The sessions with a Run or message that names the attachment: the last one that is deleted takes the content with it.
CREATE TABLE attachment_uses (
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (workspace_id, session_id, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX attachment_uses_by_digest ON attachment_uses (workspace_id, digest);

CREATE TABLE messages (
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
    is_summary INTEGER NOT NULL,
    -- The id first: a page of a session begins after a message whose workspace the caller does not pass.
    UNIQUE (id, workspace_id)
) STRICT;

CREATE INDEX messages_by_session ON messages (session_id, ordinal);
CREATE INDEX messages_by_run ON messages (session_id, run_id, ordinal);

CREATE TABLE message_tails (
    message_ordinal INTEGER NOT NULL,
    number INTEGER NOT NULL,
    part INTEGER NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (message_ordinal, number)
) STRICT, WITHOUT ROWID;

-- Holds the tokens that kedge/store/search_tokens.py makes, separated by spaces: for these, the tokeniser only splits at
-- the spaces. `rowid` is the ordinal of the message.
CREATE VIRTUAL TABLE message_tokens USING fts5 (
    tokens,
    content = '',
    contentless_delete = 1,
    detail = 'none',
    tokenize = "ascii tokenchars '_'"
);

-- A commit also merges segments of the index, up to a number of index pages: small pages (in bytes) keep it short.
INSERT INTO message_tokens (message_tokens, rank) VALUES ('pgsz', 1000);
-- No merge only because rows were deleted: it has no limit, and took a second of a slice. The entries of deleted rows
-- disappear when their segment is merged with others.
INSERT INTO message_tokens (message_tokens, rank) VALUES ('deletemerge', 0);

CREATE TABLE asks (
    ordinal INTEGER PRIMARY KEY NOT NULL,
    id TEXT NOT NULL UNIQUE,
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    state TEXT NOT NULL,
    record BLOB NOT NULL
) STRICT;

CREATE INDEX asks_by_session ON asks (session_id);
-- Settled Asks accumulate; pending ones are few and read often.
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
    record BLOB NOT NULL
) STRICT;

CREATE INDEX file_versions_by_session ON file_versions (session_id, ordinal);

-- Separate from the version, which each change of the file rewrites. A version of a file that did not exist has no row.
CREATE TABLE file_contents (
    version_ordinal INTEGER PRIMARY KEY NOT NULL,
    content BLOB NOT NULL
) STRICT;
