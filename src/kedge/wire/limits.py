"""Limits that server and clients share. Each has a unit and a reason."""

from __future__ import annotations

#: The text of a prompt: a megabyte is a long book, and larger texts are attachments. Bytes.
PROMPT_BYTES_MAX = 1024 * 1024
#: A body with attachments. Parsing JSON blocks the event loop for about 1 ms per megabyte. Bytes.
BODY_BYTES_MAX = 16 * 1024 * 1024
#: A body without attachments. Bytes.
SMALL_BODY_BYTES_MAX = 64 * 1024
#: The name of a model. Characters.
MODEL_CHARS_MAX = 200
#: Largest step count, time or budget of a Run: every JSON parser reads integers up to this one exactly.
OPTION_MAX = 2**53
#: The message of an error, which may quote the request. Characters.
ERROR_CHARS_MAX = 2000
#: A session's title: one line in a list. Characters.
TITLE_CHARS_MAX = 200
#: Attachments of one prompt: models make no good use of more. Items.
ATTACHMENTS_MAX = 20
#: A page of messages, sessions or runs. Items.
PAGE_ITEMS_MAX = 1000
#: Files that a session changed, in one list: more than a screen shows. Items.
CHANGED_FILES_MAX = 500
#: A page ends with the item with which it reaches this size: it is held in memory several times while it is sent, and
#: a page of pictures would have gigabytes. Bytes, as stored.
PAGE_BYTES_MAX = 4 * 1024 * 1024
#: Open event streams of one server: each costs a file descriptor and about 20 kB. Items.
STREAMS_MAX = 2000
#: The longest GET .../wait; clients repeat it. Seconds.
WAIT_S_MAX = 300.0
#: Models in one list: several times those of all known providers together. Items.
MODELS_MAX = 1000
#: Rules of one prompt. Items.
RULES_MAX = 100
#: The text of a denial or an answer, typed by a user. Characters.
MESSAGE_CHARS_MAX = 10_000
#: Questions that a model asks at once, and their answers. Items.
QUESTIONS_MAX = 20
#: A shell command of the user. Bytes.
COMMAND_BYTES_MAX = 64 * 1024
