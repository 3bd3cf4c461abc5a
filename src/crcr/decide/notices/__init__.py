"""Notices: the events that people are told about, the threads that they belong to, the channels, and the texts."""
