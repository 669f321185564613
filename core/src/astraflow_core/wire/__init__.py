"""What travels between the services: frames, messages, authentication, an HTTP client with deadlines."""
