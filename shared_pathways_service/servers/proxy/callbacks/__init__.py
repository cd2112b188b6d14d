"""Python callbacks: programs call functions of their client at run time or at compile time."""
