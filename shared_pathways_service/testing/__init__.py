"""For tests of this project and of its users: faults, attackers, fakes, stand-ins, the testbed."""
