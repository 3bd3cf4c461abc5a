"""Notices in the store: threads with their events, messages for channels, and the facts that make events."""
