"""Python callbacks: programs call functions of their client, while they run or are compiled."""
