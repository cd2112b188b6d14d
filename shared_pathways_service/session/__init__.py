"""One session, from the preflight to the deletion of its proxy: a pure state machine.

`state_machine` decides, by what the `view` knows and the `deadlines` allow; `phases` groups its
phases. `messages` are its inputs and outputs, `failures` chooses the error of a session that
fails. The agent (`agent`) carries the outputs out.
"""
