"""The runner of scripts/test: layers, phases, reruns, evidence."""
