"""``transport = { use = "auto" }``: chooses a transport and says why."""
