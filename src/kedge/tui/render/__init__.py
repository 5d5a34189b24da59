"""Conversion of messages and state to lines of the screen."""
