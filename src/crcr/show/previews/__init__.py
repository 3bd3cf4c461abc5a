"""Previews of pasted links: tags in the head of pages, and pictures drawn on the server."""
