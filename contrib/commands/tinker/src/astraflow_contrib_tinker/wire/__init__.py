"""What travels between a client and the server: messages of protobuf, and the JSON of older clients."""
