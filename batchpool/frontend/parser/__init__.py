"""A process that parses long text bodies for one front end, without holding up its event loop."""
