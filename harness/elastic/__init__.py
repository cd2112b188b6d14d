"""What tests and stress programs of elastic training train, on CPU devices."""
