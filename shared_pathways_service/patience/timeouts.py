"""The table of all time-outs: when this process gives up a wait for something else.

Each comment says what is awaited. The number is the seconds on a quiet machine, and ``NAME.s`` the
seconds now (`factor`), to be read where the wait begins. Not here: intervals, pauses and other
times that end no wait; what several processes must agree on (`constants`); and options of users,
which mean what they say.
"""

from __future__ import annotations

from .factor import Timeout

# ---- The connection and its agent
#: The agent's report of a proxy's end, after JAX's error or the end of a program. (Without it the
#: user gets JAX's bare error; and whatever needs long now lets the report take long as well.)
PROXY_END_REPORT = Timeout(15.0)
#: The agent of a process that exits; the agent then continues by itself.
AGENT_AT_EXIT = Timeout(5.0)
#: The main thread's return to Python, after which a signal counts as not delivered.
MAIN_THREAD_STUCK = Timeout(1.0)
#: The outcome of a deletion, beyond the agent's own limit.
AGENT_DELETION_SLACK = Timeout(15.0)
#: Lines of a log from the agent; longer than the agent waits for them.
AGENT_LOG_REPLY = Timeout(30.0)
#: The end of an agent after its last message.
AGENT_EXIT = Timeout(5.0)
#: The clean-up of leftovers, while the caller waits for it.
AGENT_CLEAN_UP = Timeout(120.0)
#: A client's first message.
AGENT_FIRST_MESSAGE = Timeout(60.0)
#: The last messages to a slow client.
AGENT_LAST_MESSAGES = Timeout(2.0)
#: A deletion whose client no longer waits for it.
ORPHAN_DELETION = Timeout(600.0)
#: One attempt to delete the leftovers of a session.
DELETION_TRY = Timeout(20.0)
#: All attempts together, by default.
DELETION = Timeout(60.0)
#: The end of a cancelled step of a session.
STEP_CANCELLATION = Timeout(5.0)
#: Lines of a proxy's log; shorter than the client waits for them.
PROXY_LOG = Timeout(20.0)
#: The last lines of a proxy before its deletion.
PROXY_LAST_LOG = Timeout(3.0)
#: An answer of a proxy to a probe.
PROXY_PROBE = Timeout(5.0)
#: The first answer, after which the credentials are checked.
PROXY_FIRST_PROBE = Timeout(1.0)
#: A connection that a proxy without plaintext must keep open.
PROXY_SILENCE = Timeout(2.0)
#: One call of Cloud Monitoring.
MONITORING_CALL = Timeout(5.0)
#: One set of points, with credentials and descriptors.
MONITORING_WRITE = Timeout(60.0)

# ---- Sessions (pure code gets the factor from the agent)
#: The answer of an unwanted create: after one, the deletion surely follows the creation.
CREATE_UNDO = Timeout(2.0)
#: The manager's own refusal beyond queue_timeout, which has more details.
QUEUE_REFUSAL = Timeout(5.0)
#: The reason of a refusal, after the end of the refused proxy.
REFUSAL_REASON = Timeout(1.0)
#: The failure of a service, after its proxy ended before it served: its servers may have started
#: a moment ago.
SERVICE_FAILURE = Timeout(20.0)
#: The event of a proxy's end, after its tunnel broke.
TUNNEL_END_REASON = Timeout(3.0)
#: Likewise after the end of a link, while watches wait for their next try.
LINK_END_REASON = Timeout(10.0)
#: A session's last points: one spacing, and the calls.
METRICS_LINGER = Timeout(25.0)

# ---- JAX on a proxy (the plug-in also runs without the rest of the package)
#: The sockets of JAX's client, after its last reference.
CLIENT_CLOSE = Timeout(15.0)
#: A proxy that is said to exist already.
PLUGIN_CONNECT = Timeout(60.0)
#: An answer of a proxy to a check of its credentials.
PLUGIN_PROBE = Timeout(5.0)
#: An abandoned attempt to connect, when the process ends.
PLUGIN_LAST_ATTEMPT = Timeout(5.0)
#: JAX's disconnection after a failed upload; JAX's other calls wait that long without it.
JAX_DISCONNECT = Timeout(4.0)
#: The same where JAX cannot show it, because its session has ended before.
JAX_DISCONNECT_UNSEEN = Timeout(1.0)
#: A proxy's confirmation that it serves callbacks.
CALLBACKS_OPEN = Timeout(20.0)
#: Functions of callbacks that still run at the close.
CALLBACKS_CLOSE = Timeout(1.0)
#: The next call of a callback, when effects are awaited.
CALLBACKS_QUIET = Timeout(10.0)
#: The start of a profile by the executors of a proxy.
PROFILE_START = Timeout(30.0)
#: All readings of executors' clocks at one end of a profile.
PROFILE_CLOCKS = Timeout(20.0)
#: The end of a profile by the executors, with its bytes.
PROFILE_COLLECTION = Timeout(180.0)
#: A profile that has ended and is not fetched.
PROFILE_UNFETCHED = Timeout(3600.0)
#: The start of a proxy's profile for its client: the executors' and their clocks', and an answer.
PROFILE_STARTED = Timeout(90.0)
#: The end of a proxy's profile for its client: likewise.
PROFILE_STOPPED = Timeout(260.0)
#: The answer of a proxy's clock.
PROFILE_REPLY = Timeout(30.0)
#: Each part of a profile, before which the proxy moves the times of a whole file.
PROFILE_PART = Timeout(300.0)
#: The end of the thread that reads a profile.
PROFILE_CLOSE = Timeout(5.0)
#: A connection to a proxy, by which forked children know it.
FORKED_PEER = Timeout(5.0)
#: The least for which a connection must stay open to count as accepted.
CONNECTION_ACCEPTED = Timeout(1.0)

# ---- Tunnels and links
#: One dial of a tunnel; longer than a dial's own timeout, whose error is more precise.
TUNNEL_DIAL = Timeout(15.0)
#: All dials of one connection together.
TUNNEL_REDIAL = Timeout(20.0)
#: The answer to a ping of a tunnel.
TUNNEL_PONG = Timeout(10.0)
#: A byte from the pod, after the local side has ended its sending.
TUNNEL_HALF_CLOSED = Timeout(5.0)
#: The local side, to read a byte after the pod's side has ended.
TUNNEL_DRAIN = Timeout(60.0)
#: The far end, for the remaining data and to hang up.
TUNNEL_CLOSE = Timeout(10.0)
#: One dial of a link, with its handshake, and the far end's part of that.
LINK_DIAL = Timeout(15.0)
LINK_HELLO = Timeout(10.0)
#: The answer to a ping of a link.
LINK_PONG = Timeout(10.0)
#: A buffer, after which JAX gets its answer without it.
BUFFER_LOOKUP = Timeout(0.5)
#: The other end, for what was written before a carrier's end.
CARRIER_FINISH = Timeout(2.0)
#: The first bytes of a client of HTTP/2; checks that a proxy hangs up wait longer.
LINK_CLIENT_SPEAKS = Timeout(0.5)
#: The last bytes of a proxy, and then the ends of the carriers.
LINK_DRAIN = Timeout(2.0)
#: The reading of a local socket that has bytes.
LINK_SETTLE = Timeout(0.05)

# ---- API servers and their credentials
#: A request with all its tries, by default.
API_REQUEST = Timeout(30.0)
#: One of several tries: after a dead connection there is time for another.
API_TRY = Timeout(15.0)
#: A connection to an API server.
API_CONNECT = Timeout(10.0)
#: A report of its readiness.
API_READY = Timeout(5.0)
#: An API server that comes back, to know its users and permissions.
API_SETTLING = Timeout(60.0)
#: Connections that were shut down.
API_CLOSE = Timeout(2.0)
#: A watch whose connections fail, by default.
WATCH_AWAY = Timeout(120.0)
#: The end of a watch beyond the time that was asked for: its connection may be dead.
WATCH_OVERDUE = Timeout(30.0)
#: A new token, while the last one is valid.
TOKEN_RENEWAL = Timeout(5.0)
#: A kubeconfig's plug-in, which may have to reach an identity provider.
EXEC_PLUGIN = Timeout(60.0)
#: The login of a program's own client, whose hook may have to reach an identity provider.
PROGRAM_LOGIN = Timeout(60.0)
#: A token from google-auth, with its search for a metadata server.
GOOGLE_TOKEN = Timeout(45.0)
#: One of its requests.
GOOGLE_TOKEN_REQUEST = Timeout(15.0)
#: A cluster's description.
GKE_LOOK_UP = Timeout(20.0)
#: An endpoint; a private one never answers from outside.
GKE_ENDPOINT = Timeout(5.0)

# ---- Homes: the embedded service
#: An answer of a running service.
SERVICE_ANSWER = Timeout(10.0)
#: A service that starts or ends.
SERVICE_TRANSITION = Timeout(60.0)
#: A supervisor, for a submitted job.
JOB_CALL = Timeout(60.0)
#: A restarted service, to take over a job.
JOB_TAKE_OVER = Timeout(3.0)
#: A supervisor, for a proxy.
PROXY_CALL = Timeout(30.0)
#: The manager's last events about an ended proxy.
LAST_EVENTS = Timeout(1.0)
#: The end of a killed process.
KILLED_PROXY = Timeout(1.0)
#: Slices that start; normally each takes one or two seconds.
SLICES_READY = Timeout(30.0)
#: The manager's status meanwhile.
SLICES_STATUS = Timeout(10.0)
#: The end of killed processes.
KILLED_PROCESSES = Timeout(10.0)
#: A lock that a client which checks it holds for a moment.
SERVICE_LOCK = Timeout(0.5)

#: The system's answer about logouts.
LOGIND = Timeout(2.0)

# ---- Homes: clusters and pods
#: The checks before a job is submitted.
CLUSTER_CHECKS = Timeout(60.0)
#: An API server, while a job is awaited.
JOB_CLUSTER_AWAY = Timeout(600.0)
#: The pods of a cancelled job.
JOB_PODS_END = Timeout(60.0)
#: One command of git.
GIT = Timeout(60.0)
#: A manager with a ready pod, across restarts.
MANAGER_ANSWER = Timeout(60.0)
#: Its status.
MANAGER_STATUS = Timeout(10.0)
#: A proxy that is being deleted, which may still request slices.
RELEASE_LATE_REQUEST = Timeout(10.0)
#: Its last message.
RELEASE_LAST_MESSAGE = Timeout(1.0)
#: Logs of other proxies; without them, the order of their starts decides.
OTHER_PROXIES_LOGS = Timeout(2.0)
#: Details that only improve the reason of an end.
PROXY_END_DETAILS = Timeout(2.0)
#: Details of a service.
SERVICE_DETAILS = Timeout(5.0)
#: A connection to this pod's own address.
POD_CONNECT = Timeout(5.0)
#: A release, which only hastens what happens anyway.
RELEASE = Timeout(4.0)
#: The copy of one file.
SENT_FILES_COPY = Timeout(1800.0)
#: A pod's identity, which may come after its start.
SENT_FILES_TRIES = Timeout(60.0)

# ---- Connections to a resource manager
#: The manager, for the farewell of a stream.
FAREWELL = Timeout(1.0)

# ---- Operations and commands
#: A manager that may be restarting.
MANAGER_CALL = Timeout(10.0)
#: A proxy's counters: a hung proxy must not delay the others.
COUNTERS_CALL = Timeout(5.0)
#: Lines of executors after their proxy's end.
EXECUTORS_LAST_LINES = Timeout(2.0)
#: A deleted claim that no running pod uses.
CLAIM_END = Timeout(30.0)
#: The pods of a service that is replaced.
OLD_PODS_END = Timeout(120.0)
#: A history of any length.
WHOLE_HISTORY = Timeout(600.0)
#: A manager, for commands that follow it.
MANAGER_AWAY = Timeout(60.0)
#: A job's program, after its connection was lost.
PROGRAM_END_BY_ITSELF = Timeout(30.0)
#: A job's program, after SIGTERM.
PROGRAM_END = Timeout(5.0)
#: A connection to a proxy on this machine.
WORKLOAD_CONNECT = Timeout(1.0)
#: A connection of `sps verify`.
VERIFY_CONNECT = Timeout(10.0)
#: A client of `sps verify`, on request; its agent cleans up in any case.
VERIFY_TENANT_END = Timeout(60.0)
#: A command's clean-up after the kernel has ended.
KERNEL_COMMAND_END = Timeout(20.0)
#: A command, after an interrupt.
COMMAND_INTERRUPT = Timeout(10.0)

# ---- The web page
#: A service, after which the pages say that it does not answer.
PAGE_ANSWER = Timeout(5.0)
#: `sps delete`, which waits until the proxy has ended, and `sps submit`.
PAGE_COMMAND = Timeout(120.0)
#: What the page has begun, when its server ends; then the end of a command.
PAGE_CALLS_END = Timeout(10.0)
PAGE_COMMAND_END = Timeout(5.0)
#: The page, from the first click on its tile in JupyterLab until it answers.
PAGE_TILE = Timeout(60.0)
#: Requests to a server of pages or metrics that ends.
HTTP_SHUTDOWN = Timeout(1.0)
#: What is made of a long history, which the manager reads in pieces.
HISTORY_ANSWER = Timeout(120.0)
#: An agent on this machine.
PAGE_AGENT = Timeout(2.0)
#: The keys of the issuer of a proxy's assertions, discovery included.
PAGE_KEYS = Timeout(5.0)

# ---- Servers: supervisor and workers
#: The end of a proxy by itself.
PROXY_GRACE = Timeout(3.0)
#: The manager, before the end of a proxy is reported anyway.
PROXY_RELEASE = Timeout(2.0)
#: The end of a server by itself.
SERVER_GRACE = Timeout(3.0)
#: The end of a process that was started in advance.
STANDBY_GRACE = Timeout(1.0)
#: Calls of the supervisor, when it ends.
SUPERVISOR_CALLS_END = Timeout(0.5)
#: The manager, for its supervisor.
SUPERVISOR_MANAGER_CALL = Timeout(5.0)
#: A job's program, after SIGTERM.
JOB_GRACE = Timeout(10.0)
#: The connection of its runner after that.
JOB_CLOSE = Timeout(10.0)
#: An executor, to serve after its start.
EXECUTOR_SERVES = Timeout(60.0)
#: The end of a killed executor.
EXECUTOR_KILLED = Timeout(10.0)
#: The cause of the end of an executor that ended with its connection.
EXECUTOR_CAUSE = Timeout(2.0)

# ---- Servers: resource manager
#: Slices of a service that starts, before a request that they would satisfy is refused.
SLICES_AT_START = Timeout(30.0)
#: The lock of the state file.
STATE_FILE_LOCK = Timeout(1.0)
#: An API server, to verify a user.
TOKEN_REVIEW = Timeout(5.0)
#: The write in progress, when its stream ends.
LAST_WRITE = Timeout(1.0)

# ---- Servers: proxies and executors
#: The command that describes this machine's processor, on macOS.
PROCESSOR_DESCRIPTION = Timeout(10.0)
#: A process that was killed, or whose socket was closed.
COLOCATED_END = Timeout(5.0)
#: A client that is refused; one that does not read never receives it.
REFUSAL_SENT = Timeout(2.0)
#: One call of the check of grpcio's core.
CORE_CHECK = Timeout(20.0)
#: A client, to read the last message of a call.
CORE_LAST_READ = Timeout(0.2)
#: The first start of a link's far end.
LINK_SERVER_START = Timeout(60.0)
#: Its end, after it has said goodbye to the near ends.
LINK_SERVER_END = Timeout(6.0)
#: The tenant's slices; a session starts without them after this.
SLICES_GRANTED = Timeout(3.0)
#: The next bytes of a transfer, while others wait for its place.
STALLED_TRANSFER = Timeout(60.0)
#: The buffer of a download.
DOWNLOAD_BUFFER = Timeout(60.0)
#: A thread whose work is over.
THREAD_END = Timeout(5.0)
#: The check of streams to executors.
EXECUTOR_STREAM_CHECK = Timeout(5.0)
#: One transfer between executors, beyond a second per MiB.
EXECUTOR_TRANSFER = Timeout(60.0)
#: Executors, after a failed transfer; one that does not answer is lost before.
TRANSFER_FAILURE = Timeout(20.0)
#: The manager, to name the executors of a placement.
EXECUTORS_NAMED = Timeout(90.0)
#: Executors, to open their client beyond that.
EXECUTORS_OPEN = Timeout(60.0)
#: The manager, to report why an executor is lost.
EXECUTOR_LOSS_CAUSE = Timeout(2.0)
#: The threads of placements.
PLACEMENT_THREADS_END = Timeout(10.0)
#: A proxy, to read an executor's last message of a call.
EXECUTOR_LAST_READ = Timeout(600.0)
#: All hosts of a set, to report that they can open a client.
HOSTS_MEET = Timeout(10.0)
#: The hosts of a set, to open it: twice the time in which they must find each other.
HOSTS_OPEN = Timeout(60.0)

# ---- Elastic training
#: A save, after which the next one gives it up.
CHECKPOINT = Timeout(1200.0)
#: A silent slice that starts; longer than its executors may take.
SLICE_START = Timeout(180.0)
#: A snapshot that is in progress at the end.
SNAPSHOT_AT_END = Timeout(5.0)
#: A slice, to read a piece of a snapshot.
PEER_READ = Timeout(30.0)
#: A snapshot; one that takes longer hangs with its slice.
SNAPSHOT = Timeout(300.0)
#: Saves that are in progress at the end.
SAVES_AT_END = Timeout(600.0)
#: A save that was in progress when a slice was lost.
SAVE_AT_LOSS = Timeout(60.0)
#: Fetches from the slices, if one hangs.
FETCH_FROM_HANGING = Timeout(5.0)
#: Threads at the close; one that hangs in JAX is left to the process.
WAITERS_END = Timeout(1.0)
