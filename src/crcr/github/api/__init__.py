"""GitHub's REST requests and answers as data, without IO."""
