"""Checks access tokens of OAuth 2.0: what `ucall.auth.oauth` makes, imported only for that."""
