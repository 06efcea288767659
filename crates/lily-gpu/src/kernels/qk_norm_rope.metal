// Norm and rotation of queries and keys, and the KV write.
