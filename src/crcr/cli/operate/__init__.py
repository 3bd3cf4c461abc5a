"""Commands that list records and act on them: allowlists, deliveries, effects, repositories, suspensions."""
