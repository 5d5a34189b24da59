"""The error that a tool reports to the model."""


class ToolFailed(Exception):
    """A call that cannot work. The message goes to the model: what failed, and what to do instead."""
