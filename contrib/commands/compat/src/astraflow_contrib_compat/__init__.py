"""The protocol of the public AstraFlow, so that rollout services written for it work for a run of ours."""
