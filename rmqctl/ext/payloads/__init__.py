"""Decoders of message bodies: JSON, MessagePack, Hessian, Avro, Protobuf, plug-ins."""
