"""What a server answers besides calls: routes, health, its description and page."""
