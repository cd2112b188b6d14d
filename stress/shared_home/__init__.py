"""Two machines that share a home, and are killed: is each job run once, each session kept?"""
