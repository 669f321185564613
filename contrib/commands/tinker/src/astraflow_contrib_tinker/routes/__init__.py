"""The endpoints of the server, as the client calls them."""
