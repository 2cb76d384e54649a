"""Bodies decoded on request: JSON, MessagePack, Hessian, Avro, Protobuf, plug-ins."""
