"""What tests of the testbed itself need beside its fixtures (`plugin`)."""
