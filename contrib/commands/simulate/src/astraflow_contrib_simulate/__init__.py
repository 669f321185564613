"""What would a run have been with more RaaS, another staleness bound or a slower link? A discrete-event simulation of the
three services, fed with the times that a run has recorded."""
