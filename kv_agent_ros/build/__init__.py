"""Wires the objects: from a node's config to its core, a file a core, so that a node imports only what it uses."""
