"""Both ports over NATS: records in a KV bucket, files in an object store."""
