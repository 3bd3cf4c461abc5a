"""GitHub's REST requests and responses as data, without IO."""
