"""Algorithm ``leave_one_out``: REINFORCE with a leave-one-out baseline."""
