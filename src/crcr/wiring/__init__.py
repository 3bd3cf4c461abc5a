"""The composition root: settings in, a working relay out. The only room that names concrete classes of others."""
