"""State of one terminal session: requests in progress, drafts, prompt history."""
