"""The relay as functions of AWS Lambda: the same services, run one invocation at a time. See docs/aws.md."""
