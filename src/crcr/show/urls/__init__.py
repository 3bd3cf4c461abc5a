"""Addresses: locations, links, filters, cursors."""
