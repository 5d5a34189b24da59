-- The columns are documented at the records and events that they hold (kedge/core). `ordinal` is the order in which rows
-- were first stored. Every change of a workspace holds the lock of its row in `workspaces`, so within a workspace the
-- ordinals have the order of the commits.
--
-- Texts are compared byte by byte. U+0000, which PostgreSQL cannot store, is escaped; see kedge/store/postgres_connect.py.

-- One row. `cluster_id`: the cluster that this database belongs to; empty: none.
CREATE TABLE kedge_schema (version INTEGER NOT NULL, cluster_id TEXT NOT NULL);

INSERT INTO kedge_schema VALUES (0, '');

CREATE TABLE nodes (
    name TEXT COLLATE "C" PRIMARY KEY,
    incarnation TEXT NOT NULL,
    host_id TEXT NOT NULL,
    info BYTEA NOT NULL,
    load BYTEA NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL
);

CREATE UNIQUE INDEX nodes_by_incarnation ON nodes (incarnation);

CREATE TABLE workspaces (
    id TEXT COLLATE "C" PRIMARY KEY,
    ordinal BIGINT GENERATED ALWAYS AS IDENTITY,
    path TEXT COLLATE "C" NOT NULL,
    -- SHA-256: a path may be longer than an entry of an index.
    path_hash BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    base BIGINT NOT NULL,
    -- The log holds floor < position <= head. The hashes of the entries at floor and head allow to check the first entry
    -- after a trim and the last entry like any other.
    floor BIGINT NOT NULL,
    floor_hash BYTEA NOT NULL,
    head BIGINT NOT NULL,
    head_hash BYTEA NOT NULL,
    -- Whether it may have rows in hidden_sessions or cut_messages.
    has_leftovers BOOLEAN NOT NULL DEFAULT FALSE,
    -- The incarnation of the node that serves the workspace, or empty; the number of changes of the holder.
    holder TEXT COLLATE "C" NOT NULL DEFAULT '',
    token BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50); -- each append updates the row: the new version fits into the same page

CREATE INDEX workspaces_held ON workspaces (holder) WHERE holder <> '';

-- Workspaces whose rows in the other tables are being deleted; see kedge/store/postgres_removal.py.
CREATE TABLE removed_workspaces (id TEXT COLLATE "C" PRIMARY KEY);

CREATE TABLE log (
    workspace_id TEXT COLLATE "C" NOT NULL,
    position BIGINT NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C",
    payload BYTEA NOT NULL,
    hash BYTEA NOT NULL,
    PRIMARY KEY (workspace_id, position)
);

-- Enforces that a Run ends once. The session is part of the key because a deleted session frees its run_ids: without it,
-- a new Run with such an id could never end.
CREATE UNIQUE INDEX log_run_ends ON log (workspace_id, run_id, session_id) WHERE kind = 'RunEnded';

CREATE TABLE sessions (
    id TEXT COLLATE "C" PRIMARY KEY,
    workspace_id TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    record BYTEA NOT NULL
);

CREATE INDEX sessions_by_update ON sessions (workspace_id, updated_at DESC, id);

-- Sessions whose rows no read returns: deleted ones, until their last row is removed, and copies, until they are complete.
CREATE TABLE hidden_sessions (
    workspace_id TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    -- The incarnation of the store that copies to the session; empty: the session is deleted, or the copy given up.
    writer TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (workspace_id, session_id)
);

-- Messages of a session that a rewind removed, by ordinal: no read returns them, and their rows are deleted in slices.
CREATE TABLE cut_messages (
    workspace_id TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, session_id, first)
);

CREATE TABLE lanes (
    session_id TEXT COLLATE "C" PRIMARY KEY,
    workspace_id TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    next_seq BIGINT NOT NULL,
    mark BIGINT NOT NULL
);

CREATE TABLE runs (
    workspace_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    accepted_at BIGINT NOT NULL,
    ended_at BIGINT,
    record BYTEA NOT NULL,
    -- A long one is stored outside of the row, and not written again when the record changes in each Step.
    prompt BYTEA,
    PRIMARY KEY (workspace_id, run_id)
);

CREATE INDEX runs_by_session ON runs (session_id, seq);
CREATE INDEX runs_live ON runs (workspace_id, session_id, seq) WHERE state <> 'ended';

-- For statistics; see kedge/core/run_facts.py.
CREATE TABLE run_facts (
    ordinal BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id TEXT COLLATE "C" NOT NULL,
    ended_at BIGINT NOT NULL,
    facts BYTEA NOT NULL
);

CREATE INDEX run_facts_by_workspace ON run_facts (workspace_id);

-- The users; see kedge/core/users.py. Of a token only the digest is stored.
CREATE TABLE users (
    name TEXT COLLATE "C" PRIMARY KEY,
    role TEXT COLLATE "C" NOT NULL,
    token_digest TEXT COLLATE "C" NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);

-- The actions of users; see kedge/core/audit.py. Without an index over authors: the listing is read rarely, in the order
-- of the rows, and each action would pay for the index.
CREATE TABLE audit (
    ordinal BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id TEXT COLLATE "C" NOT NULL,
    author TEXT COLLATE "C" NOT NULL,
    entry BYTEA NOT NULL
);

-- The contents of files attached to prompts. Prompts and messages name them by digest.
CREATE TABLE attachments (
    workspace_id TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    content BYTEA NOT NULL,
    -- No session uses it: it is missing for every read, and removed later. It may have megabytes.
    is_unused BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (workspace_id, digest)
);

CREATE INDEX attachments_unused ON attachments (workspace_id) WHERE is_unused;

-- The sessions with a Run or message that names the attachment: the last one that is deleted takes the content with it.
CREATE TABLE attachment_uses (
    workspace_id TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (workspace_id, session_id, digest)
);

CREATE INDEX attachment_uses_by_digest ON attachment_uses (workspace_id, digest);

CREATE TABLE messages (
    ordinal BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workspace_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    role TEXT COLLATE "C" NOT NULL,
    parts BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    provider TEXT COLLATE "C" NOT NULL,
    is_summary BOOLEAN NOT NULL,
    -- The id first: a page of a session begins after a message whose workspace the caller does not pass.
    UNIQUE (id, workspace_id)
);

CREATE INDEX messages_by_session ON messages (session_id, ordinal);
CREATE INDEX messages_by_run ON messages (session_id, run_id, ordinal);

CREATE TABLE message_tails (
    message_ordinal BIGINT NOT NULL,
    number BIGINT GENERATED ALWAYS AS IDENTITY,
    part INTEGER NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    text TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (message_ordinal, number)
);

-- Holds the tokens that kedge/store/search_tokens.py makes, each after a digest of its workspace: so a search reads the
-- entries of one workspace only.
CREATE TABLE message_tokens (message_ordinal BIGINT PRIMARY KEY, tokens TSVECTOR NOT NULL);

CREATE INDEX message_tokens_by_token ON message_tokens USING gin (tokens);

CREATE TABLE asks (
    ordinal BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    workspace_id TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    record BYTEA NOT NULL
);

CREATE INDEX asks_by_session ON asks (session_id);
-- Settled Asks accumulate; pending ones are few and read often.
CREATE INDEX asks_pending ON asks (workspace_id, ordinal) WHERE state = 'pending';

CREATE TABLE grants (
    ordinal BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    workspace_id TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL, -- empty: for the whole workspace
    record BYTEA NOT NULL
);

CREATE INDEX grants_by_workspace ON grants (workspace_id, ordinal);

CREATE TABLE file_versions (
    ordinal BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    workspace_id TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    record BYTEA NOT NULL,
    -- NULL: the file did not exist.
    content BYTEA
);

CREATE INDEX file_versions_by_session ON file_versions (session_id, ordinal);
