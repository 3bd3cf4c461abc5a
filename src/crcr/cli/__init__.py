"""The commands. They parse words, call services, print; no rules live here."""
