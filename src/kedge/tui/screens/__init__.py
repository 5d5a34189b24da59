"""Dialogs above the main screen."""
