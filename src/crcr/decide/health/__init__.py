"""The relay's health as its readers see it: green, amber or red, with reasons."""
