"""What a front end serves: endpoints of models, the view of the pool, metrics."""
