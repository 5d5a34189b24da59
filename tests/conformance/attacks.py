"""The list of attacks and their tests. test_attacks.py checks that the tests exist.

Each group is a point of entry. Each line describes an attack, followed by its tests as file and name below `tests/`.
"""

from __future__ import annotations

from typing import Final

_ACCESS = "conformance/test_bad_access.py::"
_INPUT = "conformance/test_bad_input.py::"
_WIRE = "conformance/test_attacks_transport.py::"
_SERVERS = "conformance/test_e_servers.py::"
_READERS = "conformance/test_d_readers.py::"
_FILES = "conformance/test_attacks_files.py::"
_PERMISSIONS = "conformance/test_attacks_permissions.py::"
_TOOLS = "conformance/test_attacks_tools.py::"
_SECRETS = "conformance/test_attacks_secrets.py::"
_MODES = "conformance/test_attacks_modes.py::"
_PENDING = "conformance/test_pending_approvals.py::"
_DECIDED = "tools/test_attacks_in_modes.py::"
_PATHS = "tools/test_paths.py::"
_RULES = "tools/test_rules.py::"
_FETCH = "tools/test_fetch.py::"
_REDIRECTS = "tools/test_fetch_redirects.py::"

ATTACKS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "authentication": {
        "a missing, empty, wrong, longer, shorter, doubled or non-ASCII token": (
            f"{_ACCESS}test_without_the_token_no_route_answers",
        ),
        "the token in the query": (f"{_ACCESS}test_a_token_in_the_query_is_ignored",),
        "a foreign or similar Host": (f"{_ACCESS}test_with_a_foreign_host_no_route_answers",),
        "a missing or duplicate Host": (f"{_ACCESS}test_with_no_host_or_two_no_route_answers",),
        "an absolute target with another host": (f"{_ACCESS}test_an_absolute_target_is_refused_on_every_route",),
        "a page of another origin, a null or similar origin, or another site": (
            f"{_ACCESS}test_from_a_foreign_page_no_route_answers",
        ),
        "an HTML form, which a page can send to any site": (
            f"{_ACCESS}test_bodies_of_simple_cors_requests_are_refused",
            f"{_INPUT}test_a_body_with_another_content_type_is_refused",
        ),
        "DNS rebinding": (f"{_WIRE}test_a_dns_rebinding_page_gets_nothing",),
        "another user at the socket or the token file": (
            f"{_SERVERS}test_e_the_socket_needs_no_token_and_is_private",
            f"{_SERVERS}test_e_the_default_socket_is_in_a_directory_of_its_owner",
            f"{_SERVERS}test_e_another_user_at_the_socket_is_refused",
        ),
        "another machine": (
            f"{_WIRE}test_remote_addresses_need_allow_remote",
            f"{_WIRE}test_invalid_tokens_are_refused_at_the_start",
            f"{_WIRE}test_a_remote_server_requires_the_token",
        ),
    },
    "requests": {
        "contradictory lengths, malformed chunks, bytes that are not HTTP": (
            f"{_ACCESS}test_garbage_is_answered_400_and_the_connection_closed",
            "fuzz/test_http.py::test_random_requests_get_correct_replies",
        ),
        "an endless head, trailer or URL": (
            f"{_ACCESS}test_an_endless_head_is_dropped",
            f"{_WIRE}test_chunk_framing_and_trailers_are_bounded",
            f"{_WIRE}test_trailers_are_not_headers",
        ),
        "a body over the limit, with and without a length": (
            f"{_INPUT}test_a_prompt_with_a_wrong_field_is_refused",
            f"{_INPUT}test_a_body_that_is_not_an_object_is_refused",
            f"{_WIRE}test_a_chunked_body_has_the_same_limit",
        ),
        "a head or a body sent one byte at a time, or never": (
            f"{_WIRE}test_a_slow_request_is_dropped",
            f"{_WIRE}test_a_slow_body_with_the_token_leaves_no_trace",
        ),
        "an incomplete body": (f"{_INPUT}test_an_incomplete_body_leaves_no_trace",),
        "unread replies": (
            f"{_READERS}test_d4_a_stuck_reader_costs_little_and_misses_nothing",
            f"{_READERS}test_d9_a_client_that_stops_reading_is_dropped",
            f"{_WIRE}test_pipelined_requests_stay_unread",
        ),
        "too many streams, or streams of disconnected clients": (
            f"{_WIRE}test_one_stream_too_many_is_refused",
            f"{_WIRE}test_a_stream_with_a_pipelined_request_ends_on_disconnect",
        ),
        "deep, huge or malformed JSON, wrong types, lone surrogates and duplicate keys": (
            f"{_INPUT}test_a_prompt_with_a_wrong_field_is_refused",
            f"{_INPUT}test_of_duplicate_keys_the_last_counts",
            f"{_INPUT}test_a_body_that_is_not_an_object_is_refused",
            f"{_INPUT}test_a_wrong_value_in_any_request_is_refused",
        ),
        "a Position that is negative, huge, text, or of another workspace": (
            f"{_INPUT}test_an_invalid_position_is_refused",
            f"{_INPUT}test_a_position_of_another_workspace_gets_a_gap",
            "fuzz/test_resume.py::test_random_resume_values_get_correct_replies",
        ),
    },
    "files": {
        "`..`, absolute paths, directories with a similar name, links to files, directories and parents": (
            f"{_FILES}test_no_file_outside_is_read_or_written_without_approval",
            f"{_PATHS}test_paths_outside_need_approval",
            "fuzz/test_fuzzed_paths.py::test_random_paths_stay_in_the_workspace",
        ),
        "a search through links": (f"{_FILES}test_a_search_does_not_follow_links",),
        "a link swapped in while the file is in use": (
            f"{_FILES}test_a_link_swapped_in_after_the_approval_is_not_followed",
            f"{_FILES}test_undo_does_not_follow_a_swapped_in_link",
            f"{_PATHS}test_race_between_check_and_open_stays_inside",
            "warden/test_processes.py::test_a_directory_that_has_become_a_link_is_not_entered",
        ),
        "a denied file by another name": (
            f"{_PATHS}test_deny_rule_covers_symlink_and_target",
            "agent/test_system_prompt.py::test_denied_file_is_never_an_instruction_file",
        ),
        "a hard link to a file outside": (f"{_FILES}test_a_write_to_a_hard_link_keeps_the_other_name",),
        "paths through /proc": (
            f"{_FILES}test_tools_never_read_proc_of_the_server",
            f"{_FILES}test_a_path_through_proc_is_resolved",
        ),
        "devices, pipes and sockets instead of files": (
            f"{_FILES}test_devices_pipes_and_sockets_are_refused_without_a_hang",
            f"{_FILES}test_instruction_files_that_are_pipes_do_not_hang",
        ),
        "names that look alike": (
            f"{_FILES}test_two_names_that_look_alike_are_two_files",
            f"{_PATHS}test_names_are_compared_by_bytes",
        ),
        "files that start programs: hooks, and the configuration of git and kedge": (
            f"{_FILES}test_startup_files_need_an_approval_for_the_exact_file",
            f"{_FILES}test_rules_never_cover_the_files_of_kedge",
            f"{_PATHS}test_hooks_are_guarded_through_symlinks_and_other_names",
        ),
    },
    "permissions": {
        "a change of the command, directory, environment or file after the approval": (
            f"{_PERMISSIONS}test_only_the_id_of_an_answer_is_used",
            f"{_PERMISSIONS}test_an_answer_does_not_cover_a_swapped_directory",
            f"{_PERMISSIONS}test_an_answer_does_not_cover_a_changed_environment",
            f"{_PERMISSIONS}test_an_answer_does_not_cover_a_file_that_appeared",
            "tools/test_edit_races.py::test_file_changed_during_approval_is_not_written",
            "tools/test_edit_races.py::test_edit_is_not_applied_at_another_position",
            "tools/test_shell.py::test_grant_covers_its_directory_only",
        ),
        "a prompt that folds into a Run with more permissions": (
            "conformance/test_attacks_fold.py::test_a_folded_prompt_keeps_its_own_rules",
        ),
        "the same attacks in every mode": (
            f"{_DECIDED}test_reading_outside_asks_in_every_mode",
            f"{_DECIDED}test_writing_outside_asks_in_every_mode",
            f"{_DECIDED}test_guarded_files_ask_in_every_mode",
            f"{_DECIDED}test_invalid_paths_are_refused_before_a_decision",
            f"{_DECIDED}test_commands_ask_are_confined_or_refused_in_every_mode",
            f"{_DECIDED}test_no_trick_passes_unconfined_in_any_mode",
            f"{_DECIDED}test_denied_commands_are_denied_in_every_mode",
            f"{_MODES}test_files_and_network_are_not_reached_in_any_mode",
            f"{_MODES}test_deny_rules_hold_for_every_tool_in_every_mode",
            f"{_MODES}test_a_child_agent_has_no_more_than_its_parent",
            f"{_MODES}test_confined_commands_do_not_escape_in_any_mode",
        ),
        "an answer or a mode that settles more than it permits": (
            f"{_PENDING}test_grant_of_a_session_settles_its_other_approvals",
            f"{_PENDING}test_grant_for_always_settles_approvals_of_all_sessions",
            f"{_PENDING}test_switch_of_the_mode_settles_what_it_permits",
            "engine/test_asks.py::test_mode_that_is_switched_back_settles_nothing",
        ),
        "new guarded files of a command that runs unasked": (
            "engine/test_withheld_files.py::test_confined_command_leaves_no_new_guarded_files",
            "engine/test_withheld_files.py::test_default_configuration_names_no_program",
            "engine/test_withheld_files.py::test_a_directory_without_access_hides_nothing",
            "engine/test_withheld_files.py::test_a_swapped_directory_moves_nothing_outside",
            "conformance/test_modes.py::test_auto_withholds_new_guarded_files",
        ),
        "concurrent answers": (f"{_PERMISSIONS}test_concurrent_answers_make_one_call",),
        "an answer for a Run that has ended": (
            f"{_PERMISSIONS}test_an_answer_for_a_run_that_has_ended_changes_nothing",
        ),
        "no attached client": (f"{_PERMISSIONS}test_without_a_client_a_call_stays_pending",),
        "shell tricks to extend an allow rule": (
            f"{_RULES}test_every_trick_needs_approval",
            f"{_PERMISSIONS}test_no_trick_of_the_corpus_bypasses_configured_rules",
            "fuzz/test_shell_rules.py::test_allowed_words_match_real_shells",
            "fuzz/test_shell_rules.py::test_corpus_tricks_ask_in_any_quoting",
        ),
        "shell tricks to bypass a deny rule": (
            f"{_RULES}test_denied_command_is_found_anywhere_in_the_line",
            f"{_RULES}test_denied_command_cannot_hide_from_the_grammar",
            f"{_PERMISSIONS}test_deny_rules_hold_for_the_corpus_in_every_mode",
            "fuzz/test_shell_rules.py::test_nested_denied_command_is_denied",
        ),
        "characters that hide parts of an approval": (
            f"{_PERMISSIONS}test_invisible_characters_are_escaped_in_approvals",
            f"{_PERMISSIONS}test_a_control_character_does_not_hide_a_diff",
            "tools/test_write.py::test_approval_shows_the_text_not_guessed_bytes",
            "tools/test_write.py::test_invisible_characters_in_a_diff_are_escaped",
        ),
        "a command or a diff that is too long to read": (
            f"{_PERMISSIONS}test_long_commands_are_shown_completely",
            "tools/test_write.py::test_too_large_diff_cannot_be_approved",
            "tools/test_diff.py::test_changes_at_both_ends_are_two_hunks",
        ),
    },
    "tools": {
        "keys and tokens in the environment of tool processes": (
            f"{_TOOLS}test_tool_processes_cannot_read_the_servers_secrets",
        ),
        "descriptors of the server": (f"{_TOOLS}test_tool_processes_have_three_descriptors_and_no_tty",),
        "fork bombs, processes that ignore signals, `kill -1`": (
            f"{_TOOLS}test_the_server_survives_any_command_and_the_run_ends",
            f"{_TOOLS}test_a_cancel_ends_every_process_of_a_fork_bomb",
        ),
        "endless output and endless lines": (f"{_TOOLS}test_gigabytes_of_output_do_not_block_the_server",),
        "requests to the server by its own tool processes": (f"{_TOOLS}test_a_command_cannot_change_the_mode",),
    },
    "fetch": {
        "local addresses, in every notation": (
            f"{_TOOLS}test_fetch_never_reaches_local_addresses",
            f"{_FETCH}test_address_that_is_not_public_is_refused",
            f"{_FETCH}test_no_spelling_of_localhost_passes_the_resolver",
        ),
        "redirects to local addresses": (
            f"{_REDIRECTS}test_redirect_to_an_address_that_is_not_public_is_refused",
            f"{_REDIRECTS}test_rebound_host_is_refused_at_the_redirect",
            f"{_FETCH}test_redirect_to_an_invalid_url_is_refused",
        ),
        "a DNS reply that changes between check and connect": (f"{_FETCH}test_dns_rebinding_has_no_effect",),
        "other schemes": (f"{_FETCH}test_invalid_url_is_refused",),
        "decompression bombs, slow charsets and endless bodies": (
            f"{_FETCH}test_decompression_bomb_is_cut",
            f"{_FETCH}test_unusual_charset_is_ignored",
            f"{_FETCH}test_bytes_after_a_compressed_body_are_not_read",
            f"{_FETCH}test_compressed_size_of_a_body_is_bounded",
        ),
    },
    "secrets and trust": {
        "keys in logs, events, errors, the database, a reply": (
            f"{_SECRETS}test_keys_in_provider_errors_are_never_shown",
            f"{_SECRETS}test_keys_and_token_are_not_readable_in_the_workspace",
        ),
        "a repository that sets endpoints, servers or permissions": (
            f"{_SECRETS}test_an_untrusted_repository_sets_nothing_important",
            f"{_SECRETS}test_trust_is_for_the_content_and_ends_when_it_changes",
            "config/test_reload.py::test_revoked_trust_applies_despite_an_invalid_file",
        ),
        "unsafe deserialization": (
            f"{_SECRETS}test_the_database_contains_only_plain_json",
            f"{_SECRETS}test_the_source_uses_no_unsafe_deserializer",
        ),
    },
}
