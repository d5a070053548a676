"""`batchpool consume`: the records of a Kafka topic through a model, into another topic."""
