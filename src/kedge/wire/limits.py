"""Limits that both sides know. Each has a unit and a reason."""

from __future__ import annotations

#: A prompt is text a person or a program wrote. A megabyte is a long book; larger things are attachments. In bytes.
PROMPT_BYTES_MAX = 1024 * 1024
#: A body with attachments. Parsing JSON blocks the loop about 1 ms a megabyte, so this is what a stall may cost. Bytes.
BODY_BYTES_MAX = 16 * 1024 * 1024
#: A body without attachments. Bytes.
SMALL_BODY_BYTES_MAX = 64 * 1024
#: The name of a model. Characters.
MODEL_CHARS_MAX = 200
#: Largest step count, time or budget of a Run: what every JSON reader holds exactly.
OPTION_MAX = 2**53
#: The message of an error, which may quote what was sent. Characters.
ERROR_CHARS_MAX = 2000
#: A session's title: one line in a list. Characters.
TITLE_CHARS_MAX = 200
#: Attachments of one prompt: a model reads no more of them with profit. Items.
ATTACHMENTS_MAX = 20
#: A page of messages or runs. Items.
PAGE_ITEMS_MAX = 1000
#: Open event streams of one server: each costs a file descriptor and about 20 kB. Items.
STREAMS_MAX = 2000
#: How long one GET .../wait may be kept open; clients ask again. Seconds.
WAIT_S_MAX = 300.0
#: Models told of at once: several times what all known providers have together. Items.
MODELS_MAX = 1000
#: Rules given with one prompt. Items.
RULES_MAX = 100
#: What a person types into a denial or an answer. Characters.
MESSAGE_CHARS_MAX = 10_000
#: Questions a model may ask at once, and so answers. Items.
QUESTIONS_MAX = 20
#: A command that a person has run for them. Bytes.
COMMAND_BYTES_MAX = 64 * 1024
