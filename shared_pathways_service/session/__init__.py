"""One session, from the preflight to the deletion of its proxy: a pure state machine.

`state_machine` decides, by the `view` and the `phase_deadlines`; `phases` groups its phases.
`messages` are its inputs and outputs, `failures` chooses the error of a failed session. The agent
(`agent`) performs the outputs.
"""
