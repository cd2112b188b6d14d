"""One session, from the preflight to the deletion of its proxy: a pure state machine.

`state_machine` decides, `messages` are its inputs and outputs, `failures` chooses the error of a
session that fails. The agent (`agent`) carries the outputs out.
"""
