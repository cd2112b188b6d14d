"""Acts on services in a cluster: deploy, drain, hotswap, disrupt. No terminal, no options.

Commands (`cli.commands`) call these and show what happens; programs may call them as well.
"""
