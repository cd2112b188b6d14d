"""A network of a test's own: hosts in network namespaces, and a switch that loses and delays.

- `namespaces`: hosts as network namespaces, and a program that has its own
- `switch`: passes packets between the hosts, as the condition of each link says
- `resets`: TCP resets as a firewall sends them
- `servers`: this project's servers on the hosts

Linux only, as root, with ``/dev/net/tun`` and util-linux. The kernel needs neither netem nor
netfilter: the switch is a thread that reads and writes the packets of the hosts' tun devices.
"""
