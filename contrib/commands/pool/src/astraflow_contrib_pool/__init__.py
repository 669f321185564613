"""Many runs share one standing pool of RaaS."""
