"""The upstream's own CI: its checks recorded per commit, packed when they are quiet."""
