"""Starts the Python processes of tests by forking one that has imported JAX, gRPC and the package.

A start costs a hundredth of the CPU time of a real one, which imports everything again. The process
is a child of the one that asked for it, with the same arguments, environment, descriptors, limits
and signals, and finds no module imported that a new interpreter would not have.

| module | what it does |
| --- | --- |
| `requests` | which starts can be forked, and what describes them |
| `client` | redirects `subprocess` and `os.posix_spawn` of a process to its fork server |
| `server` | the fork server: forks a process for each request |
| `contained` | makes the forked process the first one of a container of the testbed |
| `entered` | makes the forked process one on a stand-in for a machine |
| `c_library` | functions of the C library, for other parts of the harness, too |
| `startup` | makes the forked process what was requested |
| `process_title` | command line and environment of a process as `/proc` shows them |
| `shelf` | modules that are loaded, but not yet imported by the program |
| `preloaded` | what is loaded |
| `forking` | gives this process a fork server, for a block of code |
| `plugin` | gives each process of pytest a fork server |

`SPS_TEST_FORKS=0` starts every process anew.
"""
