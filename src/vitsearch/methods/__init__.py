"""Published methods that compose the lower parts."""
