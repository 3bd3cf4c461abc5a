"""The outbox: effects, the claims that workers hold on them by lease, the leader, and the registry of live workers."""
