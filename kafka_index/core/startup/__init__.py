"""What a broker does when it starts."""
