"""Transport ``folder``: whole versions as files in a folder that trainer and RaaS share."""
