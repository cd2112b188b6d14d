"""Operations on services in a cluster: deploy, drain, hotswap, disrupt. No terminal, no options.

Commands (`cli.commands`) call these and display their progress; other programs may call them too.
"""
